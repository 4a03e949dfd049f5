"""The static cache: step by step what the growing one gives, with nothing about the length on the host."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from longshort import HeadPlan, LSAttention
from longshort.nn import LSStaticCache

from .decoding import TIGHT, build, draw, full

LENGTH = 75


def new_cache(model, **options):
    """Every row NaN, so that one read before it is written shows."""
    cache = model.new_cache(static=True, **options)
    for layer in cache.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    return cache


def assert_steps_agree(model, tokens, sizes, batch=1, **options):
    """Static and growing cache give the same logits after every chunk; sizes: of the chunks, the last repeated."""
    static, growing = new_cache(model, batch_size=batch, **options), model.new_cache(batch_size=batch)
    sizes, start = list(sizes), 0
    while start < tokens.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        part = tokens[:, start : start + size]
        expected = model(part, cache=growing).logits
        torch.testing.assert_close(model(part, cache=static).logits, expected, **TIGHT)
        start += part.shape[1]
        assert static.length == growing.length == start


@pytest.mark.parametrize(
    ("window", "rollback"), [(1, 0), (2, 5), (63, 0), (64, 5), (65, 0), (LENGTH - 1, 0), (LENGTH, 5), (LENGTH + 1, 0)]
)
@pytest.mark.every(3)
def test_every_step_equals_that_of_the_growing_cache(window, rollback):
    model = build(window=window, n_global=1, positions="rotary")
    assert_steps_agree(model, draw(length=LENGTH), [20, 1], max_length=LENGTH, rollback=rollback)


@pytest.mark.parametrize("positions", ["learned", "rotary", "sinusoidal", "alibi", "none"])
def test_every_position_encoding_goes_on_from_the_device_count(positions):
    assert_steps_agree(build(positions=positions), draw(batch=2, length=50), [31, 1, 1, 7, 1], batch=2)


@pytest.mark.parametrize(
    ("sizes", "rollback"), [([2], 7), ([8], 7), ([9], 7), ([3], 1), ([2], 0), ([30, 3, 12, 1, 8], 7)]
)
def test_steps_and_chunks_of_any_size_may_alternate(sizes, rollback):
    assert_steps_agree(build(window=16, n_global=1), draw(length=60), sizes, max_length=60, rollback=rollback)


@pytest.mark.parametrize(
    ("plan", "n_kv_heads"),
    [
        (HeadPlan(windows=(5, None, 9, 5)), 4),
        (HeadPlan(windows=(None, None, 9, 5)), 2),
        (HeadPlan(windows=(3, 6, 12, 2)), 1),
        (HeadPlan.full(4), 2),
        (HeadPlan(windows=(None, 20, 8, 8), decays=(0.0, 0.01, 0.3, 0.1), slopes=(0.1, 0.0, 0.2, 0.3)), 4),
    ],
)
@pytest.mark.every(2)
def test_heads_of_any_reach_and_grouping_share_a_layer(plan, n_kv_heads):
    model = build(plan=plan, n_kv_heads=n_kv_heads, softcap=3.0)
    assert_steps_agree(model, draw(batch=2, length=60), [11, 1, 5, 1], batch=2, max_length=60, rollback=4)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_a_left_padded_row_equals_the_row_alone(positions):
    model, rows = build(positions=positions), [draw(length=n, seed=n) for n in (40, 23, 5)]
    padding, column = torch.tensor([[40 - row.shape[1]] for row in rows]), torch.arange(40).expand(3, 40)
    batch = torch.cat([torch.nn.functional.pad(row, (40 - row.shape[1], 0)) for row in rows])
    segments, where = torch.where(column < padding, -1, 0), (column - padding).clamp(min=0)
    following, cache = draw(batch=3, length=30, seed=9), new_cache(model, batch_size=3, max_length=70)
    got = [model(batch, segments=segments, positions=where, cache=cache).logits]
    got = torch.cat([*got, *(model(token, cache=cache).logits for token in following.split(1, dim=1))], dim=1)
    for index, row in enumerate(rows):
        alone = full(model, torch.cat((row, following[index : index + 1]), dim=1))[0]
        torch.testing.assert_close(got[index, 40 - row.shape[1] :], alone, **TIGHT)


@pytest.mark.parametrize("restart", [False, True])
def test_segments_may_change_between_and_within_steps(restart):
    model, tokens = build(restart_positions=restart), draw(length=60)
    segments, cache = torch.tensor([[0] * 13 + [4] * 22 + [1] * 25]), new_cache(model, max_length=60)
    parts = [model(tokens[:, i], segments=segments[:, i], cache=cache).logits for i in torch.arange(60).split(5)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens, segments=segments).logits, **TIGHT)


@torch.no_grad()
def test_a_step_compiles_once_as_one_graph_for_every_length():
    model, tokens = build(positions="rotary"), draw(batch=2, length=40)
    cache, counter = new_cache(model, batch_size=2, max_length=40), CompileCounterWithBackend("aot_eager")
    model(tokens[:, :20], cache=cache)
    torch._dynamo.reset()
    step = torch.compile(lambda token: model(token, cache=cache).logits, backend=counter, fullgraph=True, dynamic=False)
    got = torch.cat([step(token) for token in tokens[:, 20:].split(1, dim=1)], dim=1)
    torch.testing.assert_close(got, full(model, tokens)[:, 20:], **TIGHT)
    assert counter.frame_count == 1


def test_statistics_of_the_steps_add_up_to_those_of_the_row():
    model, tokens = build(n_global=2), draw(length=60)
    expected, cache = model(tokens, stats=True).stats, new_cache(model, max_length=60)
    parts = torch.stack([model(part, cache=cache, stats=True).stats for part in tokens.split((40, *[1] * 20), dim=1)])
    torch.testing.assert_close(parts[..., 0].amax(0), expected[..., 0])
    torch.testing.assert_close(parts[..., 1].amin(0), expected[..., 1])


def test_the_largest_logits_alone_are_those_of_both():
    model, tokens = build(n_global=2), draw(length=60)
    caches = {stats: new_cache(model, max_length=60) for stats in (True, "max")}
    for part in tokens.split((40, *[1] * 20), dim=1):
        both, largest = (model(part, cache=cache, stats=stats).stats for stats, cache in caches.items())
        assert largest.shape == (*both.shape[:2], 1) and torch.equal(largest[..., 0], both[..., 0])


def test_after_a_crop_it_goes_on_as_if_never_written():
    model, tokens, other = build(window=7, n_global=1), draw(length=80), draw(length=80, seed=5)
    cache = new_cache(model, max_length=80, rollback=6)
    model(tokens[:, :50], cache=cache)
    for _ in range(2):
        model(other[:, :3], cache=cache)
        model(other[:, :1], cache=cache)
        cache.crop(4)
    got = torch.cat([model(token, cache=cache).logits for token in tokens[:, 50:].split(1, dim=1)], dim=1)
    torch.testing.assert_close(got, full(model, tokens)[:, 50:], **TIGHT)
    assert cache.length == 80


def test_a_crop_beyond_the_rollback_is_refused_and_changes_nothing():
    model, cache = build(), None
    cache = new_cache(model, max_length=40, rollback=3)
    model(draw(length=20), cache=cache)
    cache.crop(2)
    with pytest.raises(ValueError, match="n must be from 0 to 1"):
        cache.crop(2)
    assert cache.length == 18


def test_reset_forgets_everything_and_moves_nothing():
    model, tokens = build(positions="rotary"), draw(batch=2, length=40)
    cache = new_cache(model, batch_size=2, max_length=40)
    segments = torch.where(torch.arange(20).expand(2, 20) < torch.tensor([[3], [0]]), -1, 0)
    model(draw(batch=2, length=20, seed=8), segments=segments, positions=torch.arange(20) + 5, cache=cache)
    where = [layer.keys.data_ptr() for layer in cache.layers]
    cache.reset()
    got = torch.cat([model(part, cache=cache).logits for part in tokens.split((10, 1, 29), dim=1)], dim=1)
    torch.testing.assert_close(got, model(tokens).logits, **TIGHT)
    assert where == [layer.keys.data_ptr() for layer in cache.layers]


def test_after_a_reset_tokens_can_be_taken_back_as_from_a_new_cache():
    model, tokens = build(), draw(length=40)
    cache = new_cache(model, max_length=60, rollback=5)
    model(draw(length=50, seed=2), cache=cache)
    cache.crop(5)
    cache.reset()
    model(tokens[:, :20], cache=cache)
    model(draw(length=5, seed=3), cache=cache)
    cache.crop(5)
    torch.testing.assert_close(model(tokens[:, 20:], cache=cache).logits, full(model, tokens)[:, 20:], **TIGHT)


def test_positions_that_are_taken_back_leave_the_count_before_them():
    model, tokens = build(positions="rotary"), draw(length=40)
    cache = new_cache(model, max_length=40, rollback=5)
    model(tokens[:, :20], cache=cache)
    model(draw(length=3, seed=3), positions=torch.arange(3) + 90, cache=cache)
    cache.crop(3)
    torch.testing.assert_close(model(tokens[:, 20:], cache=cache).logits, full(model, tokens)[:, 20:], **TIGHT)


def test_rows_can_be_reordered_in_place_but_not_added():
    model, tokens = build(), draw(batch=2, length=40)
    cache = new_cache(model, batch_size=2, max_length=40)
    model(tokens[:, :20], cache=cache)
    cache.reorder(torch.tensor([1, 1]))
    got = torch.cat([model(tokens[1:, i : i + 1].expand(2, 1), cache=cache).logits for i in range(20, 40)], dim=1)
    torch.testing.assert_close(got, full(model, tokens[1:])[:, 20:].expand(2, -1, -1), **TIGHT)
    with pytest.raises(ValueError, match="keeps its size"):
        cache.repeat(2)


def test_a_static_cache_needs_a_length():
    with pytest.raises(ValueError, match=r"max_length must be an integer from 1 to .* got None"):
        LSStaticCache([HeadPlan.full(2)], head_dim=4, max_length=None)


def test_bad_calls_are_refused_and_leave_the_cache_as_it_was():
    model, tokens = build(), draw(length=60)
    cache = new_cache(model, max_length=30)
    model(tokens[:, :29], cache=cache)
    with pytest.raises(ValueError, match="max_length 30 and holds 29; got 2 more"):
        model(tokens[:, 29:31], cache=cache)
    with pytest.raises(ValueError, match="batch size of the input, 2, got 1"):
        model(draw(batch=2, length=1), cache=cache)
    torch.testing.assert_close(
        model(tokens[:, 29:30], cache=cache).logits, full(model, tokens[:, :30])[:, 29:], **TIGHT
    )


def test_max_length_is_the_context_and_no_more_where_positions_are_learned():
    model = build()
    assert model.new_cache(static=True).max_length == 256
    with pytest.raises(ValueError, match="max_length must be at most the 256 learned positions, got 257"):
        model.new_cache(static=True, max_length=257)
    assert build(positions="rotary").new_cache(static=True, max_length=300).max_length == 300


def test_bytes_are_those_of_the_rows_and_the_counters():
    model = build(window=16, n_global=1)
    cache = model.new_cache(batch_size=2, max_length=100, rollback=4, static=True)
    rows = 2 * 2 * (1 * 100 + 3 * 20) * 8 * 4 * 2
    assert isinstance(cache, LSStaticCache) and cache.nbytes == rows + 8 + 4 * 2 * 4


def test_a_layer_on_its_own_takes_a_static_cache():
    layer, x = LSAttention(32, HeadPlan(windows=(None, 5)), positions="rotary"), torch.randn(2, 30, 32)
    cache = LSStaticCache([layer.plan], head_dim=16, batch_size=2, max_length=30)
    parts = []
    for part in x.split((12, *[1] * 18), dim=1):
        parts.append(layer(part, cache=cache.layers[0]))
        cache.advance(part.shape[1])
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x), **TIGHT)


def test_it_says_that_it_cannot_record_the_past():
    with pytest.raises(ValueError, match="larger rollback"):
        new_cache(build(), max_length=40).activate_past_recording()
