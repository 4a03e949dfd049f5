"""Numbers of heads, against probabilities that transformers forms itself."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from longshort import HeadPlan
from longshort.hf import use_head_plan
from longshort.hf.inspection import calls
from longshort.hf.inspection.calls import make_observable
from longshort.hf.inspection.measure import FIRST, copying, measure

from ..small import VARIANTS, shell
from .models import CONFIGS, model_of

LENGTH = 40


def tokens(rows=2, length=LENGTH):
    return torch.randint(1, 256, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[1 << 24, 4 * LENGTH * 7], ids=["whole", "blocks of 7 queries"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(calls, "AT_ONCE", request.param)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_measured_is_what_the_probabilities_say(name, blocks):
    model, ids = model_of(name), tokens()
    probabilities = torch.stack(model(ids, output_attentions=True).attentions).double()[..., LENGTH // 2 :, :]
    at = torch.arange(LENGTH // 2, LENGTH)[:, None]
    distance, keys = at - torch.arange(LENGTH), torch.arange(LENGTH).expand(LENGTH - LENGTH // 2, -1)
    make_observable(model)
    found = measure(model, ids)
    for away in range(LENGTH):
        here = (distance == away) & (keys >= FIRST)
        expected = (probabilities * here).sum(-1).mean(dim=(1, 3))
        torch.testing.assert_close(found.mass[:, :, away], expected, atol=1e-6, rtol=1e-4)
    first = (probabilities * (keys < FIRST)).sum(-1).mean(dim=(1, 3))
    torch.testing.assert_close(found.sink, first, atol=1e-6, rtol=1e-4)
    total = probabilities.sum(-1)
    torch.testing.assert_close(found.learned_sink, (1 - total).mean(dim=(1, 3)), atol=1e-6, rtol=1e-4)
    entropy = torch.special.entr(probabilities).sum(-1) + torch.special.entr((1 - total).clamp(min=0))
    torch.testing.assert_close(found.entropy, entropy.mean(dim=(1, 3)), atol=1e-5, rtol=1e-4)
    for keep in (0.9, 0.99):
        for window, lost in zip(found.windows(keep).flatten(), _beyond(probabilities, distance), strict=True):
            assert lost[window] <= 1 - keep + 1e-6 and (window == 1 or lost[window - 1] > 1 - keep - 1e-6)
    assert (found.learned_sink.max() > 0.01) == (name == "gpt-oss")


def _beyond(probabilities, distance):
    """For each head, the attention beyond every window."""
    lost = [(probabilities * (distance >= w)).sum(-1).mean(dim=(1, 3)).flatten() for w in range(LENGTH + 1)]
    return torch.stack(lost, dim=1)


@pytest.mark.parametrize("name", ["rotary", "sinks", "one plan", "grouped queries", "softcap", "gemma", "like llama-4"])
@torch.no_grad()
def test_our_own_models_are_measured_too(name, monkeypatch):
    model, ids, seen = shell(**VARIANTS[name]), tokens(), []
    make_observable(model)
    inner = calls.attention

    def noting(*args, **options):
        result = inner(*args, **options)
        seen.append(result)
        return result

    monkeypatch.setattr(calls, "attention", noting)
    found = measure(model, ids)
    together = found.mass.sum(-1) + found.sink + found.learned_sink
    torch.testing.assert_close(together, torch.ones_like(together), atol=1e-5, rtol=0)
    layers = model.config.num_hidden_layers
    largest = torch.stack(
        [torch.maximum(a.stats.abs_max, b.stats.abs_max) for a, b in zip(seen[:layers], seen[layers:], strict=True)]
    )
    assert torch.equal(found.largest_logit.float(), largest)
    for layer, plan in enumerate(model.model.config.layer_plans):
        for head, window in enumerate(plan.windows):
            assert window is None or not found.mass[layer, head, window:].any()


@torch.no_grad()
def test_a_plan_that_a_model_has_is_kept():
    model = model_of("llama")
    use_head_plan(model, HeadPlan(windows=(None, 8, 5, 30)))
    make_observable(model)
    found = measure(model, tokens())
    assert found.plans[1].windows == (None, 8, 5, 30)
    assert (found.windows(0.9999)[:, 2] <= 5).all() and (found.windows(0.9999)[:, 0] > 30).all()


@torch.no_grad()
def test_heads_that_see_the_first_keys_are_measured_with_them():
    model, ids = model_of("llama"), tokens()
    use_head_plan(model, HeadPlan.streaming(n_heads=4, first=2, recent=5))
    make_observable(model)
    found = measure(model, ids)
    torch.testing.assert_close(found.mass[..., :5].sum(-1) + found.sink, torch.ones(2, 4).double(), atol=1e-5, rtol=0)
    assert found.sink.min() > 0.05
    pairs = copying(model, [(ids[0], [30, 30, 30], [1, 2, 26])])
    assert pairs.min() > 0 and copying(model, [(ids[0], [30], [2])]).max() == 0


def test_the_first_keys_are_not_lost_to_heads_that_see_them():
    model = model_of("llama")
    make_observable(model)
    found = measure(model, tokens())
    torch.testing.assert_close(found.beyond()[..., 0], torch.ones(2, 4, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.beyond(first=True)[..., 0], 1 - found.sink, atol=1e-6, rtol=0)
    assert (found.windows(0.99, first=True) <= found.windows(0.99)).all()


@torch.no_grad()
def test_copying_is_the_attention_on_the_keys_that_should_be_found():
    model, ids = model_of("gemma3"), tokens()
    probabilities = model(ids, output_attentions=True).attentions
    make_observable(model)
    queries, keys = [20, 31, 39], [3, 30, 39]
    expected = [p[:, :, queries, keys].double().mean(dim=(0, 2)) for p in probabilities]
    found = copying(model, [(row, queries, keys) for row in ids])
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=1e-4)
    assert found[0, 0] != 0


def test_models_without_single_keys_are_refused():
    with pytest.raises(ValueError, match="got one with smoothing"):
        make_observable(shell(smoothing=3))
    with pytest.raises(ValueError, match=r"sequences must be .* at least 16 tokens"):
        measure(model_of("llama"), tokens(length=15))


@pytest.mark.slow
def test_heads_that_learned_to_repeat_are_found_by_their_induction_score():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    for _ in range(1000):
        half = torch.randint(64, (16, int(torch.randint(12, 25, ()))))
        rows = torch.cat((half, half), dim=1)
        labels = torch.cat((torch.full_like(half, -100), half), dim=1)
        model(rows, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    make_observable(model.eval())
    half, queries = torch.randint(64, (8, 20)), list(range(20, 39))
    asked = [(row, queries, [query - 19 for query in queries]) for row in torch.cat((half, half), dim=1)]
    found = copying(model, asked)
    assert found[1].max() > 0.7 and found[0].max() < 0.1
