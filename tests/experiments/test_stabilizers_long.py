"""Stabilizers over seeds and longer runs: who is ahead at the end, and was it so early?"""

import math

import pytest

from experiments import load, stabilizers_long
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, PARTLY, UNDECIDED
from experiments.stabilizers_long import EARLY, LATE, NAMES

from .made_up import made_up_sweep, planned

EXPERIMENT = load("stabilizers-long")
ABOVE = dict.fromkeys(stabilizers_long.STABILIZERS, 0.1) | {"ls": 0.0, "ls-2": 0.0, "layer-wise": 0.0}


def test_windows_by_layers_have_as_many_global_heads_as_two_per_layer(tmp_path):
    configs = planned(EXPERIMENT, tmp_path)
    assert tuple(configs) == NAMES
    count = {
        name: sum(window is None for plan in config.model.layer_plans for window in plan.windows)
        for name, config in configs.items()
    }
    assert count == {"ls": 6, "ls-2": 12, "layer-wise": 12, "all-local": 0} | dict.fromkeys(
        ("plain", "qk-norm-head", "qk-clip"), 36
    )
    assert {config.run.steps for config in configs.values()} == {LATE}
    assert all(EARLY % config.run.eval_every == 0 for config in configs.values())


def found(late, early=None, *, seeds=3, unsure=()):
    """What is found where losses are so many nats above those of LS-attention."""
    curves = []
    for name, above in late.items():
        for seed in range(seeds):
            noise = 0.01 * seed + (0.5 * (-1) ** seed if name in unsure else 0.0)
            validation = [[EARLY, 4.5 + (early or late)[name] + 0.01 * seed], [LATE, 4.0 + above + noise]]
            if math.isinf(above):
                validation = [[EARLY, 4.5], [LATE // 2, None]]
            curves.append({"variant": name, "seed": seed, "validation": validation})
    return {"rows": [{"variant": name} for name in late], "curves": curves}


def verdicts(data):
    return {name: finding.verdict for name, finding in EXPERIMENT.findings(data).items()}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({}, HOLDS), ({"qk-clip": -0.1}, PARTLY), (dict.fromkeys(stabilizers_long.STABILIZERS, -0.1), FAILS)],
)
def test_ls_is_ahead_where_every_interval_says_so(changes, verdict):
    assert verdicts(found(ABOVE | changes))["ahead"] == verdict


def test_a_run_that_diverged_is_behind():
    assert verdicts(found(ABOVE | {"plain": math.inf}))["ahead"] == HOLDS


def test_heads_and_layers_are_compared_at_equal_numbers_of_global_heads():
    data = found(ABOVE | {"ls": 0.1, "ls-2": 0.0, "layer-wise": 0.05})
    assert verdicts(data)["layers"] == verdicts(data)["two"] == HOLDS
    assert verdicts(found(ABOVE | {"ls-2": 0.1}))["layers"] == FAILS
    assert verdicts(found(ABOVE, unsure=("layer-wise",)))["layers"] == UNDECIDED


def test_what_was_decided_early_keeps_its_sign_or_does_not():
    apart = ABOVE | {"ls-2": 0.02, "layer-wise": -0.02}
    assert verdicts(found(apart))["keeps"] == HOLDS
    assert verdicts(found(apart, apart | {"layer-wise": 0.02}))["keeps"] == PARTLY
    assert verdicts(found(apart, unsure=("layer-wise",)))["keeps"] == PARTLY
    turned = ABOVE | dict.fromkeys(stabilizers_long.STABILIZERS, -0.1)
    assert verdicts(found(turned, ABOVE))["keeps"] == FAILS
    assert verdicts(found(turned, ABOVE, unsure=("plain",)))["keeps"] == UNDECIDED
    missing = {name: above for name, above in ABOVE.items() if name != "qk-clip"}
    assert "keeps" not in verdicts(found(missing)) and verdicts(found(missing))["ahead"] == NOT_RUN


def test_both_steps_are_shown_with_intervals():
    text = EXPERIMENT.more(found(ABOVE | {"plain": 0.2}, ABOVE))
    assert "| plain | +0.100 | +0.100 to +0.100 | +0.200 | +0.200 to +0.200 |" in text
    assert "| ls | -0.100 | -0.200 |" in text  # minus plain attention's


def test_runs_are_collected_and_drawn(tmp_path):
    data = EXPERIMENT.collect(made_up_sweep(EXPERIMENT, tmp_path))
    assert "| ls-2 | 1 |" in EXPERIMENT.table(data)
    drawn = str(EXPERIMENT.figure(data).to_dict())
    assert "qk-clip" in drawn and "layer-wise" in drawn
