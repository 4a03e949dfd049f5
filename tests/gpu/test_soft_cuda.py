"""Soft thinking on a GPU: drawn without a captured step, and scored as on the CPU."""

import pytest
import torch

from longshort import GPT, generate
from longshort.generation import SoftThinking, ThinkingRecord, engine
from longshort.rl import FORMS, rollout

from ..small import small_config

ROWS = [[5, 6, 7, 8], [3], [20, 10]]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return GPT(small_config(vocab_size=40, init_std=0.2)).eval().cuda()


def test_thinking_is_the_same_with_and_without_a_cache(model, monkeypatch):
    monkeypatch.setattr(engine, "DecodingStep", None)

    def drawn(end, **options):
        thinking = SoftThinking(end=end, noise="none", tau=1.0)
        options |= {"max_new_tokens": 30, "temperature": 0.0, "thinking": thinking}
        return torch.stack(list(generate(model, ROWS, **options)))

    end, record = drawn(39)[3, 0].item(), ThinkingRecord()
    assert torch.equal(drawn(end, record=record), drawn(end, use_cache=False))
    assert record.soft.is_cuda and not record.soft.all()


@pytest.mark.parametrize("form", FORMS)
def test_a_rollout_is_scored_as_on_the_cpu_and_twice_alike(model, form):
    drawn = rollout(model, ROWS, SoftThinking(end=7, tau=0.5, top_k=8), max_new_tokens=30, seed=0)
    scores = drawn.log_probs(model, form=form)
    assert torch.equal(scores, drawn.log_probs(model, form=form))
    scores.sum().backward()
    moved = {name: x.cpu() for name, x in vars(drawn).items() if isinstance(x, torch.Tensor)}
    on_cpu = type(drawn)(**vars(drawn) | moved)
    there = GPT(model.config).eval()
    there.load_state_dict(model.state_dict())
    torch.testing.assert_close(scores.detach().cpu(), on_cpu.log_probs(there, form=form).detach(), atol=1e-3, rtol=1e-3)
