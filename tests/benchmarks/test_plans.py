"""Costs of plans: models take turns in whole steps, a decoder is checked first, and a plan that fails says why."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks import plans
from benchmarks.steps import BLOCKS, EAGER, Trainee, Way
from longshort import GPTConfig, HeadPlan

_SIZES = {"vocab_size": 64, "context": 32, "n_layers": 2, "width": 16, "n_heads": 2, "positions": "rotary"}
FULL, LOCAL = HeadPlan.full(2), HeadPlan(windows=(4, 4))
MODELS = {
    "full": GPTConfig(**_SIZES, plan=FULL),
    "mixed": GPTConfig(**_SIZES, plans=(LOCAL, FULL)),
    "local": GPTConfig(**_SIZES, plan=LOCAL),
}
TIMING = {"device": "cpu", "rounds": 2, "steps": 1}


def test_steps_at_every_context_have_the_same_tokens():
    for context in (16, 64):
        rows = plans.training(MODELS, context, tokens=128, how=EAGER, **TIMING)
        assert [row["name"] for row in rows] == list(MODELS)
        for row in rows:
            assert len(row["milliseconds"]) == 2
            assert row["tokens_per_second"] == pytest.approx([128e3 / ms for ms in row["milliseconds"]])


def test_a_plan_that_cannot_run_says_why_and_the_others_are_measured():
    models = MODELS | {"capped": GPTConfig(**_SIZES, plan=FULL, backend="sdpa", softcap=5.0)}
    full, *_, capped = plans.training(models, 16, tokens=32, how=EAGER, **TIMING)
    assert len(full["milliseconds"]) == 2 and "softcap" in capped["failed"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
def test_layers_of_one_kind_are_compiled_once_for_all_models():
    torch.compiler.reset()
    counters.clear()
    losses = {}
    for name, config in MODELS.items():
        setting = plans.Plans(batch=1, context=32, models={name: config})
        for how in (BLOCKS, EAGER):
            trainee = Trainee(Way(name=name, heads=name, how=how), setting, device="cpu", compiler="eager")
            losses[name, how] = trainee.step().item()
        assert losses[name, BLOCKS] == pytest.approx(losses[name, EAGER], rel=1e-5)
    assert counters["stats"]["unique_graphs"] == 2  # full and local
    torch.compiler.reset()


def test_decoding_is_timed_after_the_prompt_and_checked_before():
    rows = plans.decoding(MODELS, 40, batch=2, **TIMING)
    assert [row["name"] for row in rows] == list(MODELS)
    for row in rows:
        assert row["mode"] == "eager" and row["error"] < 1e-4
        assert row["tokens_per_second"] == pytest.approx([2e3 / ms for ms in row["milliseconds"]])


def test_a_decoder_with_the_wrong_reach_is_not_timed(monkeypatch):
    class Narrow(plans.Ours):
        def __init__(self, model, device):
            other = plans.GPT(replace(model.config, plan=None, plans=(LOCAL,) * 2)).eval()
            other.load_state_dict(model.state_dict())
            super().__init__(other, device)

    monkeypatch.setattr(plans, "Ours", Narrow)
    full, mixed, local = plans.decoding(MODELS, 40, batch=1, **TIMING)
    for row in (full, mixed):
        assert "logits are off by" in row["failed"] and "milliseconds" not in row
    assert len(local["milliseconds"]) == 2
