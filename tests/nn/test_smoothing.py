"""Smoothing in layer, model and caches: nothing leaks, and decoding gives what a full forward pass gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort import GPT, GPTConfig, HeadPlan, LSAttention, LSCache, attention
from longshort.nn import LSStaticCache
from longshort.ops import Smoothing

LENGTH = 70
TIGHT = {"atol": 1e-5, "rtol": 1e-5}
PLANS = {
    "long and short": HeadPlan.long_short(n_heads=4, n_global=1, window=8),
    "las": HeadPlan.las(n_heads=4, max_decay=0.3),
    "las in windows": HeadPlan.las(n_heads=4, max_decay=0.3, window=6),
    "plain": HeadPlan.full(4),
}


def build(smoothing=4, plan=PLANS["long and short"], **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "context": 256, "n_layers": 2, "width": 32, "n_heads": 4, "init_std": 0.3}
    return GPT(GPTConfig(**sizes, plan=plan, smoothing=smoothing, **options)).eval()


def draw(batch=1, length=LENGTH, seed=1):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def full(model, tokens, **options):
    return model(tokens, **options).logits


def fed(model, cache, tokens, sizes):
    """Logits of all positions, the tokens given in chunks of these sizes, the last of them repeated."""
    sizes, parts = list(sizes), []
    while tokens.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        parts.append(model(tokens[:, :size], cache=cache).logits)
        tokens = tokens[:, size:]
    return torch.cat(parts, dim=1)


def poison(cache):
    """NaN in every row, so that one read before it is written shows."""
    for layer in cache.layers:
        for store in layer.stores:
            store.k.fill_(torch.nan)
            store.v.fill_(torch.nan)
    return cache


@pytest.fixture(params=["growing", "static"])
def static(request):
    return request.param == "static"


def test_the_layer_smooths_the_values_of_every_head():
    torch.manual_seed(0)
    layer = LSAttention(32, PLANS["las"], smoothing=3, positions="rotary").double()
    x, segments = torch.randn(2, 20, 32, dtype=torch.float64), torch.arange(20).expand(2, -1) // 7
    q, k, v = layer.heads(x)
    expected = attention(q, k, v, PLANS["las"], smoothing=Smoothing(width=3), segments=segments).out
    torch.testing.assert_close(layer(x, segments=segments), layer.out(expected.transpose(1, 2).flatten(-2)))
    unsmoothed = attention(q, k, v, PLANS["las"], segments=segments).out
    assert not torch.allclose(expected, unsmoothed)


def test_a_width_of_one_is_no_smoothing():
    layer = LSAttention(32, PLANS["plain"], smoothing=1)
    assert layer.smoothing is None


@pytest.mark.parametrize("plan", PLANS)
def test_a_smoothed_model_sees_nothing_of_the_future(plan):
    model, tokens = build(plan=PLANS[plan]), draw(length=30)
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 50
    before, after = full(model, tokens), full(model, changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_a_packed_text_has_the_logits_it_has_alone():
    model, tokens = build(positions="rotary", restart_positions=True), draw(length=30)
    segments = torch.tensor([[0] * 11 + [1] * 19])
    together = full(model, tokens, segments=segments)
    torch.testing.assert_close(together[:, 11:], full(model, tokens[:, 11:]), **TIGHT)


def test_a_smoothed_model_has_no_parameters_more():
    assert build().n_parameters() == build(None).n_parameters()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("smoothing", [2, 5, 80])
@pytest.mark.every(3)
def test_decoding_equals_the_full_forward_at_every_position(plan, smoothing, static):
    model, tokens = build(smoothing, PLANS[plan], positions="rotary"), draw(2)
    cache = poison(model.new_cache(2, max_length=LENGTH, rollback=3, static=static))
    torch.testing.assert_close(fed(model, cache, tokens, [21, 1, 1, 9, 1]), full(model, tokens), **TIGHT)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    smoothing=st.integers(2, 9),
    rollback=st.integers(0, 4),
    static=st.booleans(),
)
def test_any_chunking_gives_the_same_logits(sizes, smoothing, rollback, static):
    model, tokens = build(smoothing, positions="rotary"), draw(length=40)
    options = {"max_length": 40} if static else {}
    cache = poison(model.new_cache(rollback=rollback, static=static, **options))
    torch.testing.assert_close(fed(model, cache, tokens, sizes), full(model, tokens), **TIGHT)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.every(2)
def test_tokens_taken_back_leave_no_trace(plan, static):
    model, tokens = build(5, PLANS[plan], positions="rotary"), draw()
    cache = poison(model.new_cache(max_length=LENGTH, rollback=6, static=static))
    fed(model, cache, tokens[:, :40], [33, 1])
    fed(model, cache, draw(length=6, seed=2), [1])
    cache.crop(6)
    torch.testing.assert_close(fed(model, cache, tokens[:, 40:], [3, 1]), full(model, tokens)[:, 40:], **TIGHT)


def test_a_smoothed_model_without_local_heads_takes_back_no_more_than_its_raw_values_allow():
    model = build(5, PLANS["plain"])
    cache = model.new_cache(rollback=6)
    model(draw(length=40), cache=cache)
    with pytest.raises(ValueError, match="n must be from 0 to 6"):
        cache.crop(7)


def test_all_tokens_since_the_last_crop_can_be_taken_back_while_the_past_is_recorded():
    model, tokens = build(5, positions="rotary"), draw()
    cache = model.new_cache(rollback=2)
    fed(model, cache, tokens[:, :30], [30])
    cache.activate_past_recording()
    fed(model, cache, draw(length=25, seed=3), [7, 1])
    cache.crop(25)
    torch.testing.assert_close(fed(model, cache, tokens[:, 30:], [1]), full(model, tokens)[:, 30:], **TIGHT)


def test_rows_can_be_reordered(static):
    model, tokens = build(positions="rotary"), draw(3)
    cache = model.new_cache(3, max_length=LENGTH, static=static)
    fed(model, cache, tokens[:, :30], [30])
    rows = torch.tensor([2, 0, 0])
    cache.reorder(rows)
    following = torch.cat((tokens[rows, :30], tokens[:, 30:]), dim=1)
    torch.testing.assert_close(fed(model, cache, tokens[:, 30:], [1]), full(model, following)[:, 30:], **TIGHT)


def test_left_padded_rows_decode_as_they_do_alone(static):
    model, tokens = build(positions="none"), draw(2, 40)
    padding = torch.tensor([[0], [13]])
    segments = torch.where(torch.arange(30) < padding, -1, 0)
    cache = poison(model.new_cache(2, max_length=40, static=static))
    parts = [model(tokens[:, :30], cache=cache, segments=segments).logits]
    parts += [model(tokens[:, t : t + 1], cache=cache).logits for t in range(30, 40)]
    decoded = torch.cat(parts, dim=1)
    torch.testing.assert_close(decoded[0], full(model, tokens[:1])[0], **TIGHT)
    torch.testing.assert_close(decoded[1, 13:], full(model, tokens[1:, 13:])[0], **TIGHT)


def test_the_first_steps_with_segments_read_nothing_that_was_not_written(static):
    model, tokens = build(positions="none"), draw(1, 12)
    cache = poison(model.new_cache(max_length=12, static=static))
    parts = [model(tokens[:, :1], cache=cache, segments=torch.zeros(1, 1, dtype=torch.long)).logits]
    parts += [model(tokens[:, t : t + 1], cache=cache).logits for t in range(1, 12)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full(model, tokens), **TIGHT)


def test_a_new_segment_begins_without_the_values_of_the_last(static):
    model, tokens = build(positions="none"), draw(1, 40)
    cache = poison(model.new_cache(max_length=40, static=static))
    model(tokens[:, :25], cache=cache, segments=torch.zeros(1, 25, dtype=torch.long))
    parts = [model(tokens[:, 25:26], cache=cache, segments=torch.ones(1, 1, dtype=torch.long)).logits]
    parts += [model(tokens[:, t : t + 1], cache=cache).logits for t in range(26, 40)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full(model, tokens[:, 25:]), **TIGHT)


def test_a_cache_is_used_again_after_a_reset(static):
    model, tokens = build(positions="rotary"), draw()
    cache = model.new_cache(max_length=LENGTH, static=static)
    fed(model, cache, draw(seed=5), [50, 1])
    cache.reset()
    torch.testing.assert_close(fed(model, cache, tokens, [1]), full(model, tokens), **TIGHT)


def test_a_smoothed_cache_is_larger_by_the_raw_values_alone():
    sizes = {"head_dim": 8, "max_length": 100, "batch_size": 2, "rollback": 3}
    plain = LSCache([PLANS["plain"]] * 3, **sizes)
    smoothed = LSCache([PLANS["plain"]] * 3, **sizes, smoothing=Smoothing(width=5))
    assert smoothed.nbytes - plain.nbytes == 3 * 2 * 4 * (5 + 3) * 8 * 4


def test_a_model_without_smoothing_keeps_no_raw_values(static):
    cache = build(None).new_cache(static=static)
    assert all(layer.raw_values is None and layer.stores == layer.pools for layer in cache.layers)


def test_a_cache_of_another_width_is_refused():
    model = build(4)
    with pytest.raises(ValueError, match="plans, KV heads, head dim and smoothing"):
        model(draw(), cache=build(5).new_cache())
    with pytest.raises(ValueError, match="plans, KV heads, head dim and smoothing"):
        model(draw(), cache=build(None).new_cache())


@pytest.mark.parametrize("kind", [LSCache, LSStaticCache])
@pytest.mark.parametrize("options", [{"side": "centred", "lookahead": True}, {"stage": "before"}])
def test_smoothing_that_a_token_does_not_settle_has_no_cache(kind, options):
    with pytest.raises(ValueError, match="a cache serves smoothing of side 'causal' after the softmax, got side"):
        kind([PLANS["plain"]], head_dim=8, max_length=10, smoothing=Smoothing(width=3, **options))


def test_a_language_model_refuses_centred_smoothing():
    with pytest.raises(ValueError, match="smoothing_side must be 'causal' in causal attention, got 'centred'"):
        build(3, smoothing_side="centred")


def test_a_two_sided_layer_may_smooth_centred_and_takes_no_cache():
    layer = LSAttention(32, PLANS["las"], smoothing=3, smoothing_side="centred", causal=False)
    x = torch.randn(1, 12, 32)
    (grad,) = torch.autograd.grad(layer(x.requires_grad_())[:, 0].sum(), x)
    assert (grad.abs().amax((0, 2)) > 0).all()
    with pytest.raises(ValueError, match="causal must be True for decoding with a cache, got False"):
        layer(x.detach(), cache=LSCache([PLANS["las"]], head_dim=8).layers[0])


def test_a_causal_layer_may_smooth_centred_where_looking_ahead_is_allowed():
    layer = LSAttention(32, PLANS["plain"], smoothing=3, smoothing_side="centred", lookahead=True)
    x = torch.randn(1, 12, 32, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x)[:, 5].sum(), x)
    assert (grad.abs().amax((0, 2)) > 0).tolist() == [True] * 7 + [False] * 5


def test_a_model_that_pools_its_logits_runs_on_the_reference_alone():
    tokens = draw(length=20)
    model = build(3, smoothing_stage="before", backend="reference")
    assert not torch.allclose(full(model, tokens), full(build(None), tokens))
    with pytest.raises(ValueError, match='only backend="reference" supports'):
        build(3, smoothing_stage="before")
    with pytest.raises(ValueError, match="a cache serves smoothing of side 'causal' after the softmax"):
        model.new_cache()
