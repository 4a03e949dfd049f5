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


@pytest.fixture(params=["after", "before"])
def stage(request):
    """Smoothed values, or smoothed keys."""
    return request.param


def build(smoothing=4, plan=PLANS["long and short"], stage="after", **options):
    torch.manual_seed(0)
    options["smoothing_stage"] = stage
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


def test_the_layer_smooths_every_head_after_its_rotation(stage):
    torch.manual_seed(0)
    layer = LSAttention(32, PLANS["las"], smoothing=3, smoothing_stage=stage, positions="rotary").double()
    x, segments = torch.randn(2, 20, 32, dtype=torch.float64), torch.arange(20).expand(2, -1) // 7
    q, k, v = layer.heads(x)
    options = {"smoothing": Smoothing(width=3, stage=stage), "segments": segments, "backend": "reference"}
    expected = attention(q, k, v, PLANS["las"], **options).out
    torch.testing.assert_close(layer(x, segments=segments), layer.out(expected.transpose(1, 2).flatten(-2)))
    unsmoothed = attention(q, k, v, PLANS["las"], segments=segments).out
    assert not torch.allclose(expected, unsmoothed)


def test_a_width_of_one_is_no_smoothing():
    layer = LSAttention(32, PLANS["plain"], smoothing=1)
    assert layer.smoothing is None


@pytest.mark.parametrize("plan", PLANS)
def test_a_smoothed_model_sees_nothing_of_the_future(plan, stage):
    model, tokens = build(plan=PLANS[plan], stage=stage), draw(length=30)
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 50
    before, after = full(model, tokens), full(model, changed)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_a_packed_text_has_the_logits_it_has_alone(stage):
    model, tokens = build(stage=stage, positions="rotary", restart_positions=True), draw(length=30)
    segments = torch.tensor([[0] * 11 + [1] * 19])
    together = full(model, tokens, segments=segments)
    torch.testing.assert_close(together[:, 11:], full(model, tokens[:, 11:]), **TIGHT)


def test_a_smoothed_model_has_no_parameters_more():
    assert build().n_parameters() == build(None).n_parameters()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("smoothing", [2, 5, 80])
@pytest.mark.every(3)
def test_decoding_equals_the_full_forward_at_every_position(plan, smoothing, static, stage):
    model, tokens = build(smoothing, PLANS[plan], stage, positions="rotary"), draw(2)
    cache = poison(model.new_cache(2, max_length=LENGTH, rollback=3, static=static))
    torch.testing.assert_close(fed(model, cache, tokens, [21, 1, 1, 9, 1]), full(model, tokens), **TIGHT)


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    smoothing=st.integers(2, 9),
    rollback=st.integers(0, 4),
    static=st.booleans(),
    stage=st.sampled_from(["after", "before"]),
)
def test_any_chunking_gives_the_same_logits(sizes, smoothing, rollback, static, stage):
    model, tokens = build(smoothing, PLANS["las in windows"], stage, positions="rotary"), draw(length=40)
    options = {"max_length": 40} if static else {}
    cache = poison(model.new_cache(rollback=rollback, static=static, **options))
    torch.testing.assert_close(fed(model, cache, tokens, sizes), full(model, tokens), **TIGHT)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.every(3)
def test_tokens_taken_back_leave_no_trace(plan, static, stage):
    model, tokens = build(5, PLANS[plan], stage, positions="rotary"), draw()
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


def test_all_tokens_since_the_last_crop_can_be_taken_back_while_the_past_is_recorded(stage):
    model, tokens = build(5, stage=stage, positions="rotary"), draw()
    cache = model.new_cache(rollback=2)
    fed(model, cache, tokens[:, :30], [30])
    cache.activate_past_recording()
    fed(model, cache, draw(length=25, seed=3), [7, 1])
    cache.crop(25)
    torch.testing.assert_close(fed(model, cache, tokens[:, 30:], [1]), full(model, tokens)[:, 30:], **TIGHT)


def test_rows_can_be_reordered(static, stage):
    model, tokens = build(stage=stage, positions="rotary"), draw(3)
    cache = model.new_cache(3, max_length=LENGTH, static=static)
    fed(model, cache, tokens[:, :30], [30])
    rows = torch.tensor([2, 0, 0])
    cache.reorder(rows)
    following = torch.cat((tokens[rows, :30], tokens[:, 30:]), dim=1)
    torch.testing.assert_close(fed(model, cache, tokens[:, 30:], [1]), full(model, following)[:, 30:], **TIGHT)


def test_left_padded_rows_decode_as_they_do_alone(static, stage):
    model, tokens = build(stage=stage, positions="none"), draw(2, 40)
    padding = torch.tensor([[0], [13]])
    segments = torch.where(torch.arange(30) < padding, -1, 0)
    cache = poison(model.new_cache(2, max_length=40, static=static))
    parts = [model(tokens[:, :30], cache=cache, segments=segments).logits]
    parts += [model(tokens[:, t : t + 1], cache=cache).logits for t in range(30, 40)]
    decoded = torch.cat(parts, dim=1)
    torch.testing.assert_close(decoded[0], full(model, tokens[:1])[0], **TIGHT)
    torch.testing.assert_close(decoded[1, 13:], full(model, tokens[1:, 13:])[0], **TIGHT)


def test_the_first_steps_with_segments_read_nothing_that_was_not_written(static, stage):
    model, tokens = build(stage=stage, positions="none"), draw(1, 12)
    cache = poison(model.new_cache(max_length=12, static=static))
    parts = [model(tokens[:, :1], cache=cache, segments=torch.zeros(1, 1, dtype=torch.long)).logits]
    parts += [model(tokens[:, t : t + 1], cache=cache).logits for t in range(1, 12)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full(model, tokens), **TIGHT)


def test_a_new_segment_begins_without_the_values_of_the_last(static, stage):
    model, tokens = build(stage=stage, positions="none"), draw(1, 40)
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


def test_a_smoothed_cache_is_larger_by_the_raw_values_or_keys_alone(stage):
    sizes = {"head_dim": 8, "max_length": 100, "batch_size": 2, "rollback": 3}
    plain = LSCache([PLANS["plain"]] * 3, **sizes)
    smoothed = LSCache([PLANS["plain"]] * 3, **sizes, smoothing=Smoothing(width=5, stage=stage))
    assert smoothed.nbytes - plain.nbytes == 3 * 2 * 4 * (5 + 3) * 8 * 4


@pytest.mark.parametrize("decays", [(0.1, 0.1, 0.4, 0.4), (0.0, 0.1, 0.2, 0.4)], ids=["by group", "by head"])
def test_grouped_queries_decode_as_the_full_forward_and_share_slots_where_they_decay_alike(decays, static):
    plan = HeadPlan(windows=(None, None, 6, 6), decays=decays)
    model, tokens = build(3, plan, "before", n_kv_heads=2, positions="rotary"), draw(2)
    cache = poison(model.new_cache(2, max_length=LENGTH, rollback=3, static=static))
    torch.testing.assert_close(fed(model, cache, tokens, [21, 1, 1, 9, 1]), full(model, tokens), **TIGHT)
    slots = {store.k.shape[1] for store in cache.layers[0].pools}
    assert slots == ({1} if decays[0] == decays[1] else {2})


def test_statistics_of_decoding_are_those_of_the_smoothed_keys(static):
    model, tokens = build(3, PLANS["las"], "before", positions="rotary"), draw()
    with torch.no_grad():
        whole = model(tokens, stats=True).stats
    cache = model.new_cache(max_length=LENGTH, static=static)
    parts = [model(part, cache=cache, stats=True).stats for part in tokens.split((40, 1, 1, 1, 27), dim=1)]
    torch.testing.assert_close(torch.stack([part[..., 0] for part in parts]).amax(0), whole[..., 0], **TIGHT)
    torch.testing.assert_close(torch.stack([part[..., 1] for part in parts]).amin(0), whole[..., 1], **TIGHT)


def test_a_model_without_smoothing_keeps_no_raw_values(static):
    cache = build(None).new_cache(static=static)
    assert all(layer.raw is None and layer.stores == layer.pools for layer in cache.layers)


def test_a_cache_of_another_width_or_order_is_refused():
    model = build(4)
    with pytest.raises(ValueError, match="plans, KV heads, head dim and smoothing"):
        model(draw(), cache=build(4, stage="before").new_cache())
    with pytest.raises(ValueError, match="plans, KV heads, head dim and smoothing"):
        model(draw(), cache=build(5).new_cache())
    with pytest.raises(ValueError, match="plans, KV heads, head dim and smoothing"):
        model(draw(), cache=build(None).new_cache())


@pytest.mark.parametrize("kind", [LSCache, LSStaticCache])
@pytest.mark.parametrize("side", ["centred", "leading"])
def test_smoothing_that_a_token_does_not_settle_has_no_cache(kind, side, stage):
    smoothing = Smoothing(width=3, side=side, stage=stage, lookahead=True)
    with pytest.raises(ValueError, match=f"a cache serves smoothing of side 'causal', got side '{side}', in which"):
        kind([PLANS["plain"]], head_dim=8, max_length=10, smoothing=smoothing)


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


@pytest.mark.parametrize("plan", PLANS)
def test_a_model_that_pools_its_logits_trains_as_on_the_reference(plan):
    tokens, found = draw(2, length=20), []
    for backend in ("auto", "reference"):
        model = build(3, PLANS[plan], "before", backend=backend)
        loss = model(tokens[:, :-1], tokens[:, 1:]).loss
        found.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, **TIGHT)
    assert not torch.allclose(found[0][0], build(3, PLANS[plan])(tokens[:, :-1], tokens[:, 1:]).loss)


def test_pooled_logits_that_no_keys_give_need_the_reference_and_have_no_cache():
    model = build(3, stage="before", smoothing_side="leading", backend="reference")
    tokens = draw(length=20)
    assert not torch.allclose(full(model, tokens), full(build(3, stage="before"), tokens))
    with pytest.raises(ValueError, match=r"with smoothing_side 'leading' .* count as zeros"):
        build(3, stage="before", smoothing_side="leading")
    with pytest.raises(ValueError, match="a cache serves smoothing of side 'causal', got side 'leading'"):
        model.new_cache()
    with pytest.raises(ValueError, match="two-sided attention with decays"):
        LSAttention(32, PLANS["las"], smoothing=3, smoothing_stage="before", causal=False)
