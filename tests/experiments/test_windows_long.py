"""Windows in long runs: what differs between them, and when the best one of short runs has moved."""

import pytest

from experiments import load, windows_long
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, PARTLY, UNDECIDED

from .made_up import made_up_sweep, planned

EXPERIMENT = load("windows-long")
JUDGE = EXPERIMENT.claims["stays"].judge
RISING = {8: 0.0, 16: 0.01, 50: 0.02, 128: 0.03}
FALLING = {8: 0.0, 16: -0.01, 50: -0.02, 128: -0.03}


def test_windows_and_encodings_differ_and_nothing_else(tmp_path):
    configs = planned(EXPERIMENT, tmp_path)
    assert set(configs) == set(windows_long.NAMES)
    for name, config in configs.items():
        encoding, _, window = name.partition("-w")
        assert config.model.positions == encoding and config.optimizer.lr == 3e-3 and config.run.steps == 30_000
        (plan,) = set(config.model.layer_plans)
        assert plan.windows == (None, *(int(window),) * 5)


def rows(above, encoding, *, seeds=3, steps=30_000, unsure=0.0):
    return [
        {
            "variant": f"{encoding}-w{window}",
            "seeds": list(range(seeds)),
            "steps": [steps] * seeds,
            "final_losses": [3.5 + more + unsure * (window > 8) * (-1) ** seed + 0.01 * seed for seed in range(seeds)],
            "final_loss": 3.5,
        }
        for window, more in above.items()
    ]


def found(learned, rotary, **options):
    return JUDGE({"rows": [*rows(learned, "learned", **options), *rows(rotary, "rotary", **options)]})


@pytest.mark.parametrize(
    ("learned", "rotary", "verdict"),
    [
        (RISING, RISING, HOLDS),
        (RISING, FALLING, PARTLY),
        (FALLING, FALLING, FAILS),
        ({**RISING, 16: -0.1}, RISING, HOLDS),  # twice as wide is not far
        ({**RISING, 128: -0.1}, {**RISING, 50: -0.1}, FAILS),
    ],
)
def test_a_window_four_times_as_wide_that_is_ahead_has_moved_the_best_one(learned, rotary, verdict):
    assert found(learned, rotary).verdict == verdict


def test_intervals_decide_over_three_seeds_of_long_runs():
    assert found(FALLING, FALLING, unsure=0.5).verdict == UNDECIDED
    assert found(RISING, RISING, steps=19_999) is None
    assert JUDGE({"rows": rows(RISING, "learned")}).verdict == NOT_RUN
    assert JUDGE({"rows": rows({8: 0.0, 16: 0.1, 50: 0.1}, "learned")}) is None
    assert "learned: +0.010 with 16, +0.020 with 50" in found(RISING, RISING).ours


def test_runs_are_collected_and_shown(tmp_path):
    data = EXPERIMENT.collect(made_up_sweep(EXPERIMENT, tmp_path))
    assert "| rotary-w128 | 1 |" in EXPERIMENT.table(data) and JUDGE(data) is None
    EXPERIMENT.figure(data).to_dict()
