"""Precision: plain attention in bf16, TF32 and fp32, judged by the shares of runs that diverge."""

import pytest

from experiments import load
from experiments.engine.evidence import FAILS, HOLDS, ONCE, PARTLY, UNDECIDED

from .made_up import made_up_sweep, planned

JUDGE = load("precision").claims["precision"].judge


def test_only_the_precision_differs(tmp_path):
    configs = planned(load("precision"), tmp_path, variants=("plain", "plain-tf32", "plain-fp32"))
    found = {name: (config.run.precision, config.run.matmul) for name, config in configs.items()}
    assert found == {
        "plain": ("bf16", "highest"),
        "plain-tf32": ("fp32", "high"),
        "plain-fp32": ("fp32", "highest"),
    }
    assert len({config.model for config in configs.values()}) == 1
    assert set(planned(load("precision"), tmp_path)) == {"plain", "plain-tf32"}


def row(variant, runs, diverged, steps=100):
    seeds = list(range(runs))
    return {"variant": variant, "seeds": seeds, "diverged_seeds": seeds[:diverged], "steps": [steps] * runs}


@pytest.mark.parametrize(
    ("bf16", "tf32", "verdict"),
    [
        ((3, 2), (3, 2), HOLDS),
        ((3, 2), (3, 1), PARTLY),
        ((3, 2), (3, 0), UNDECIDED),  # by chance in one of five
        ((3, 3), (3, 0), FAILS),
        ((1, 1), (1, 0), ONCE[FAILS]),
        ((3, 3), (1, 1), ONCE[HOLDS]),
    ],
)
def test_shares_of_all_runs_are_compared(bf16, tf32, verdict):
    found = JUDGE({"rows": [row("plain", *bf16), row("plain-tf32", *tf32)]})
    assert found.by_seeds().verdict == verdict and found.seeds == (bf16[0], tf32[0])


def test_seeds_that_ran_in_both_precisions_count_once():
    found = JUDGE({"rows": [row("plain", 3, 3), row("plain-tf32", 2, 0), row("plain-fp32", 2, 0)]})
    assert found.seeds == (3, 2) and found.ours.endswith(
        "100 steps of bf16: plain 3 of 3, plain-tf32 0 of 2, plain-fp32 0 of 2"
    )


def test_without_divergence_or_with_fewer_steps_nothing_is_decided():
    assert JUDGE({"rows": [row("plain", 1, 0), row("plain-tf32", 1, 1)]}).verdict == UNDECIDED
    assert JUDGE({"rows": [row("plain", 3, 0), row("plain-tf32", 3, 0)]}).verdict == UNDECIDED
    assert JUDGE({"rows": [row("plain", 1, 1), row("plain-tf32", 1, 0, steps=50)]}) is None
    assert JUDGE({"rows": [row("plain", 1, 1), row("plain-tf32", 1, 1, steps=50)]}).verdict == HOLDS
    assert JUDGE({"rows": [row("plain", 1, 1)]}) is None


def test_runs_are_collected_and_shown(tmp_path):
    experiment = load("precision")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, seeds=(0,)))
    assert [found["diverged_seeds"] for found in data["rows"]] == [[], []]
    step, loss = data["curves"][0]["validation"][-1]
    assert data["curves"][1]["validation"][-1][0] == step
    data["curves"][1]["validation"][-1][1] = loss + 0.25
    data["curves"][1]["logits"] = [[step, 7.0], [step + 1, 99.0]]  # what came after both were evaluated does not count
    assert f"| plain-tf32 | 0 | {step} | +0.2500 |" in experiment.more(data)
    assert "| 7 |\n" in experiment.more(data)
    data["curves"][1]["validation"][-1][1] = None
    assert f"| plain-tf32 | 0 | {step} | not finite |" in experiment.more(data)
    assert "| plain-tf32 | 1 |" in experiment.table(data)
    experiment.figure(data).to_dict()
