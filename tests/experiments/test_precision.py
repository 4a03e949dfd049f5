"""Precision: plain attention in bf16, TF32 and fp32, judged by the seeds with which bf16 diverges."""

import pytest

from experiments import load
from experiments.engine.evidence import FAILS, HOLDS, PARTLY

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


def row(variant, seeds, diverged, steps=100):
    return {"variant": variant, "seeds": seeds, "diverged_seeds": diverged, "steps": [steps] * len(seeds)}


@pytest.mark.parametrize(
    ("bf16", "tf32", "verdict"),
    [([1, 2], [1, 2, 3], HOLDS), ([1, 2], [2], PARTLY), ([1, 2], [3], FAILS), ([1, 2], [], FAILS)],
)
def test_the_seeds_with_which_bf16_diverges_decide(bf16, tf32, verdict):
    found = JUDGE({"rows": [row("plain", [1, 2, 3], bf16), row("plain-tf32", [1, 2, 3], tf32)]})
    assert found.verdict == verdict and found.seeds == (3, 3)


def test_without_divergence_or_with_fewer_steps_nothing_is_decided():
    assert JUDGE({"rows": [row("plain", [1], []), row("plain-tf32", [1], [1])]}) is None
    assert JUDGE({"rows": [row("plain", [1], [1]), row("plain-tf32", [1], [], steps=50)]}) is None
    assert JUDGE({"rows": [row("plain", [1], [1]), row("plain-tf32", [1], [1], steps=50)]}).verdict == HOLDS
    assert JUDGE({"rows": [row("plain", [1], [1])]}) is None


def test_runs_are_collected_and_shown(tmp_path):
    experiment = load("precision")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, seeds=(0,)))
    assert [found["diverged_seeds"] for found in data["rows"]] == [[], []]
    assert "| plain-tf32 | 0 |" in experiment.more(data) and "| plain-tf32 | 1 |" in experiment.table(data)
    experiment.figure(data).to_dict()
