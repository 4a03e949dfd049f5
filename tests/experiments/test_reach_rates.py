"""Plans at several learning rates: what differs, and which runs are compared."""

import pytest

from experiments import load, reach_rates
from experiments.engine.evidence import FAILS, HOLDS, PARTLY
from experiments.explosion import at_rate

from .made_up import made_up_sweep, planned

EXPERIMENT = load("reach-rates")


def test_only_plan_and_rate_differ(tmp_path):
    configs = planned(EXPERIMENT, tmp_path)
    assert set(configs) == set(reach_rates.NAMES) and len(configs) == 9
    for name, config in configs.items():
        plan, rate = next((p, r) for p in reach_rates.PLANS for r in reach_rates.RATES if at_rate(p, r) == name)
        assert config.optimizer.lr == rate and config.run.steps == 3050
        same = planned(load("reach-modern"), tmp_path, variants=(plan,))[plan]
        assert config.model == same.model and config.data == same.data and config.schedule == same.schedule


def found(*, steps=9, **losses):
    """Losses of each plan by rate."""
    rows = [
        {
            "variant": at_rate(name, rate),
            "seeds": [0, 1, 2],
            "steps": [steps if name == "full" else 9] * 3,
            "final_loss": loss,
            "final_losses": [loss, loss + 0.001, loss - 0.001],
        }
        for name in reach_rates.PLANS
        for rate, loss in zip(reach_rates.RATES, losses[name.replace("-", "_")], strict=False)
    ]
    return EXPERIMENT.findings({"rows": rows}).get("ahead")


@pytest.mark.parametrize(
    ("full", "ladder", "ls", "verdict"),
    [
        ((3.6, 3.5, 3.6), (3.6, 3.4, 3.6), (3.4, 3.6, 3.6), HOLDS),
        ((3.6, 3.5, 3.3), (3.6, 3.4, 3.6), (3.2, 3.6, 3.6), PARTLY),  # full attention wants a higher rate
        ((3.6, 3.5, 3.3), (3.6, 3.4, 3.6), (3.4, 3.6, 3.6), FAILS),
    ],
)
def test_each_plan_is_judged_at_the_rate_that_suits_it(full, ladder, ls, verdict):
    assert found(full=full, ladder_nope=ladder, ls1_w64_nope=ls).verdict == verdict


def test_a_plan_that_has_not_run_at_all_rates_decides_nothing():
    assert found(full=(3.6, 3.5), ladder_nope=(3.4,) * 3, ls1_w64_nope=(3.4,) * 3) is None


def test_runs_are_collected_and_shown(tmp_path):
    data = EXPERIMENT.collect(made_up_sweep(EXPERIMENT, tmp_path, seeds=(0,)))
    assert len(data["rows"]) == 9 and "| ladder-nope-4e-3 | 1 |" in EXPERIMENT.table(data)
    assert "minus those of full-2e-3" in EXPERIMENT.more(data)
    EXPERIMENT.figure(data).to_dict()
