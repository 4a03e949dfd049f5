"""Positions over seeds: what LS-attention and windows by whole layers gain with each encoding."""

import pytest

from experiments import load, positions_long
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, PARTLY, UNDECIDED

from .made_up import made_up_sweep, planned

EXPERIMENT = load("positions-long")


def test_every_kind_of_heads_has_every_encoding(tmp_path):
    configs = planned(EXPERIMENT, tmp_path)
    assert set(configs) == set(positions_long.NAMES)
    for name, config in configs.items():
        kind, _, encoding = name.rpartition("-")
        assert config.model.positions == encoding and config.run.steps == 6000
        windows = [plan.windows for plan in config.model.layer_plans]
        assert (len(set(windows)) > 1) == (kind == "layer-wise")
        assert all(None in own and len(set(own)) == 2 for own in windows) == (kind == "ls")


def found(gains, **options):
    """What is found where LS gains so many nats with each encoding, and windows by whole layers nothing."""
    seeds, unsure = options.get("seeds", 3), options.get("unsure", 0.0)
    rows = []
    for encoding, gain in gains.items():
        for kind, lower in (("plain", 0.0), ("ls", gain), ("layer-wise", 0.0)):
            losses = [4.0 - lower + 0.01 * seed + unsure * (lower > 0) * (-1) ** seed for seed in range(seeds)]
            about = {"variant": f"{kind}-{encoding}", "seeds": list(range(seeds)), "steps": [6000] * seeds}
            rows.append(about | {"final_losses": losses, "final_loss": 4.0})
    return EXPERIMENT.findings({"rows": rows}), {"rows": rows}


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ({"learned": 0.1, "rotary": 0.1, "alibi": 0.1}, HOLDS),
        ({"learned": 0.1, "rotary": -0.1, "alibi": 0.1}, PARTLY),
        ({"learned": -0.1, "rotary": -0.1, "alibi": -0.1}, FAILS),
        ({"learned": 0.1, "rotary": 0.1}, NOT_RUN),
    ],
)
def test_a_gain_with_all_encodings_holds(gains, verdict):
    assert found(gains)[0]["ls"].verdict == verdict


def test_intervals_decide_and_are_shown():
    every = dict.fromkeys(positions_long.ENCODINGS, 0.1)
    assert found(every, unsure=1.0)[0]["ls"].verdict == UNDECIDED
    findings, data = found(every)
    assert findings["layer-wise"].verdict == FAILS and findings["ls"].ours.startswith("+0.100 nats with learned")
    assert "| ls | rotary | +0.100 | +0.100 to +0.100 | 3 |" in EXPERIMENT.more(data)


def test_runs_are_collected_and_drawn(tmp_path):
    data = EXPERIMENT.collect(made_up_sweep(EXPERIMENT, tmp_path))
    assert "| layer-wise-alibi | 1 |" in EXPERIMENT.table(data)
    drawn = str(EXPERIMENT.figure(data).to_dict())
    assert "layer-wise" in drawn and "sinusoidal" not in drawn
