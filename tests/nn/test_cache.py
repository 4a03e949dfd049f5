"""The cache: decoding gives what a full forward pass gives, rows and bytes are what they should be."""

from functools import partial
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort import HeadPlan, LSAttention, LSCache, attention
from longshort.nn import LSStaticCache, layer_cache

from .decoding import TIGHT, build, draw, full

LENGTH = 150
POSITIONS = ["learned", "rotary", "sinusoidal", "alibi", "none"]


def fed(model, cache, tokens, sizes=None):
    """Logits of all positions, the tokens given in chunks of these sizes, the last of them repeated."""
    sizes, parts = list(sizes or [1]), []
    while tokens.shape[1]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        parts.append(model(tokens[:, :size], cache=cache).logits)
        tokens = tokens[:, size:]
    return torch.cat(parts, dim=1)


def poison(cache):
    """NaN in every row, so that one read before it is written shows."""
    for layer in cache.layers:
        for pool in layer.pools:
            pool.k.fill_(torch.nan)
            pool.v.fill_(torch.nan)
    return cache


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, LENGTH - 1, LENGTH, LENGTH + 1])
@pytest.mark.parametrize("rollback", [0, 5])
@pytest.mark.every(3)
def test_decoding_equals_the_full_forward_at_every_position(window, rollback):
    model, tokens = build(window=window, n_global=1, positions="rotary"), draw()
    cache = poison(model.new_cache(rollback=rollback, max_length=LENGTH))
    torch.testing.assert_close(fed(model, cache, tokens, [20, 1]), full(model, tokens), **TIGHT)


def test_a_short_window_is_right_after_many_wraps_of_a_growing_cache():
    model, tokens = build(window=3, n_global=1), draw(length=250)
    cache = model.new_cache(rollback=1)
    torch.testing.assert_close(fed(model, cache, tokens), full(model, tokens), **TIGHT)
    assert cache.length == 250


@pytest.mark.parametrize("positions", POSITIONS)
def test_every_position_encoding_goes_on_from_the_cache(positions):
    model, tokens = build(positions=positions), draw(batch=2)
    got = fed(model, model.new_cache(batch_size=2), tokens, [31, 1, 1, 7, 1])
    torch.testing.assert_close(got, full(model, tokens), **TIGHT)


@pytest.mark.parametrize("sizes", [[1], [2], [7], [16, 17, 33], [50, 1, 49, 3], [LENGTH - 1, 1], [LENGTH]])
@pytest.mark.parametrize("rollback", [0, 4])
def test_chunks_of_any_size_give_the_same(sizes, rollback):
    model, tokens = build(window=16, n_global=1), draw()
    cache = poison(model.new_cache(max_length=LENGTH, rollback=rollback))
    torch.testing.assert_close(fed(model, cache, tokens, sizes), full(model, tokens), **TIGHT)


@pytest.mark.parametrize(
    ("plan", "n_kv_heads"),
    [
        (HeadPlan(windows=(5, None, 9, 5)), 4),
        (HeadPlan(windows=(None, None, 9, 5)), 2),
        (HeadPlan(windows=(3, 6, 12, 2)), 2),
        (HeadPlan(windows=(3, 6, 12, 2)), 1),
        (HeadPlan.full(4), 2),
        (HeadPlan(windows=(None, 20, 8, 8), decays=(0.0, 0.01, 0.3, 0.1), slopes=(0.1, 0.0, 0.2, 0.3)), 4),
    ],
)
def test_heads_of_any_reach_and_grouping_share_a_layer(plan, n_kv_heads):
    model, tokens = build(plan=plan, n_kv_heads=n_kv_heads), draw(batch=2, length=80)
    cache = poison(model.new_cache(batch_size=2, max_length=80, rollback=3))
    torch.testing.assert_close(fed(model, cache, tokens, [21, 1, 5, 1]), full(model, tokens), **TIGHT)


def test_layers_may_have_plans_of_their_own():
    plans = (HeadPlan.full(4), HeadPlan(windows=(4,) * 4))
    model, tokens = build(plans=plans), draw(length=60)
    torch.testing.assert_close(fed(model, model.new_cache(), tokens, [9, 1]), full(model, tokens), **TIGHT)


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"qk_norm": "head"}, {"backend": "reference"}])
def test_stabilizers_and_backends_serve_with_a_cache(options):
    model, tokens = build(**options), draw(length=40)
    torch.testing.assert_close(fed(model, model.new_cache(), tokens, [9, 1]), full(model, tokens), **TIGHT)


def test_the_triton_backend_serves_with_a_cache():
    pytest.importorskip("triton")
    model, tokens = build(backend="triton", n_layers=1), draw(length=12)
    if torch.cuda.is_available():
        model, tokens = model.cuda(), tokens.cuda()
    torch.testing.assert_close(fed(model, model.new_cache(), tokens, [9, 1]), full(model, tokens), **TIGHT)


def test_a_half_precision_cache_stays_close_and_is_half_the_size():
    model, tokens = build(), draw()
    cache, whole = (model.new_cache(max_length=LENGTH, dtype=dtype) for dtype in (torch.bfloat16, None))
    got = fed(model, cache, tokens, [40, 1])
    torch.testing.assert_close(got, full(model, tokens), atol=0.5, rtol=0)
    assert 2 * cache.nbytes == whole.nbytes


def test_statistics_of_the_chunks_add_up_to_those_of_the_row():
    model, tokens = build(n_global=2), draw()
    with torch.no_grad():
        expected = model(tokens, stats=True).stats
    cache = model.new_cache()
    parts = torch.stack([model(part, cache=cache, stats=True).stats for part in tokens.split((90, 1, 59), dim=1)])
    torch.testing.assert_close(parts[..., 0].amax(0), expected[..., 0])
    torch.testing.assert_close(parts[..., 1].amin(0), expected[..., 1])


@pytest.mark.parametrize("static", [False, True])
def test_statistics_are_fp32_whatever_the_default_dtype(static, bf16_by_default):
    model, tokens = build(n_global=2).float(), draw()
    cache = model.new_cache(static=static, max_length=LENGTH)
    stats = model(tokens, cache=cache, stats=True).stats
    assert stats.dtype == torch.float32
    torch.testing.assert_close(stats, model(tokens, stats=True).stats)


def test_the_largest_logits_alone_are_those_of_both():
    model, tokens = build(n_global=2), draw()
    caches = {stats: model.new_cache() for stats in (True, "max")}
    for part in tokens.split((90, 1, 59), dim=1):
        both, largest = (model(part, cache=cache, stats=stats).stats for stats, cache in caches.items())
        assert largest.shape == (*both.shape[:2], 1) and torch.equal(largest[..., 0], both[..., 0])


def test_statistics_of_no_known_kind_are_refused_before_anything_is_written():
    model, tokens = build(), draw()
    cache = model.new_cache()
    with pytest.raises(ValueError, match=r"stats must be False, True or .* got 'min'"):
        model(tokens, cache=cache, stats="min")
    assert not cache.writing and cache.length == 0


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_left_padded_row_equals_the_row_alone(positions):
    model, rows = build(positions=positions), [draw(length=n, seed=n) for n in (40, 23, 5)]
    padding = torch.tensor([[40 - row.shape[1]] for row in rows])
    column = torch.arange(40).expand(3, 40)
    batch = torch.cat([torch.nn.functional.pad(row, (40 - row.shape[1], 0)) for row in rows])
    segments, where = torch.where(column < padding, -1, 0), (column - padding).clamp(min=0)
    following, cache, got = draw(batch=3, length=30, seed=9), model.new_cache(batch_size=3, rollback=2), []
    for part in torch.arange(40).split(17):
        got.append(model(batch[:, part], segments=segments[:, part], positions=where[:, part], cache=cache).logits)
    got = torch.cat((*got, fed(model, cache, following)), dim=1)
    for index, row in enumerate(rows):
        alone = full(model, torch.cat((row, following[index : index + 1]), dim=1))[0]
        torch.testing.assert_close(got[index, 40 - row.shape[1] :], alone, **TIGHT)


@pytest.mark.parametrize("restart", [False, True])
def test_segments_may_change_between_and_within_chunks(restart):
    model, tokens = build(restart_positions=restart), draw(length=60)
    segments = torch.tensor([[0] * 13 + [4] * 22 + [1] * 25])
    cache = model.new_cache()
    parts = [model(tokens[:, i], segments=segments[:, i], cache=cache).logits for i in torch.arange(60).split(9)]
    torch.testing.assert_close(torch.cat(parts, dim=1), full(model, tokens, segments=segments), **TIGHT)


def test_tokens_without_segments_go_on_with_the_last_one():
    model, tokens = build(restart_positions=True), draw(length=60)
    segments, cache = torch.tensor([[3] * 30 + [7] * 30]), model.new_cache()
    model(tokens[:, :40], segments=segments[:, :40], cache=cache)
    got = fed(model, cache, tokens[:, 40:])
    torch.testing.assert_close(got, full(model, tokens, segments=segments)[:, 40:], **TIGHT)


@pytest.mark.parametrize("static", [False, True])
def test_positions_that_restart_continue_from_given_ones(static):
    model, tokens = build(restart_positions=True, positions="rotary"), draw(length=60)
    segments = torch.tensor([[3] * 10 + [7] * 30 + [5] * 20])
    positions = torch.tensor([[*range(10), *range(50, 80), *range(20)]])
    cache = model.new_cache(static=static, max_length=60)
    parts = [model(tokens[:, :20], segments=segments[:, :20], positions=positions[:, :20], cache=cache).logits]
    parts += [model(tokens[:, 20:30], cache=cache).logits]
    parts += [model(tokens[:, i], segments=segments[:, i], cache=cache).logits for i in torch.arange(30, 45).split(3)]
    parts += [model(tokens[:, i : i + 1], cache=cache).logits for i in range(45, 60)]
    expected = model(tokens, segments=segments, positions=positions).logits
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, **TIGHT)


def test_segments_that_come_later_leave_the_earlier_tokens_in_segment_0():
    model, tokens = build(), draw(length=30)
    segments, cache = torch.tensor([[0] * 25 + [2] * 5]), model.new_cache()
    model(tokens[:, :20], cache=cache)
    got = model(tokens[:, 20:], segments=segments[:, 20:], cache=cache).logits
    torch.testing.assert_close(got, full(model, tokens, segments=segments)[:, 20:], **TIGHT)


@pytest.mark.parametrize("taken", [1, 3, 6])
def test_after_a_crop_it_goes_on_as_if_never_written(taken):
    model, tokens, other = build(window=7, n_global=1), draw(length=100), draw(length=100, seed=5)
    cache = poison(model.new_cache(max_length=200, rollback=6))
    fed(model, cache, tokens[:, : 60 - taken])
    fed(model, cache, other[:, :taken])
    cache.crop(taken)
    assert cache.length == 60 - taken
    got = fed(model, cache, tokens[:, 60 - taken :], [2, 1])
    torch.testing.assert_close(got, full(model, tokens)[:, 60 - taken :], **TIGHT)


def test_a_crop_takes_positions_and_segments_back_too():
    model, tokens = build(), draw(length=30)
    cache, segments, where = model.new_cache(), torch.tensor([[-1] * 5 + [0] * 25]), torch.arange(30)[None] + 3
    model(tokens[:, :20], segments=segments[:, :20], positions=where[:, :20], cache=cache)
    model(tokens[:, :4], segments=torch.full((1, 4), 8), positions=torch.full((4,), 99), cache=cache)
    cache.crop(4)
    expected = full(model, tokens, segments=segments, positions=where)[:, 20:]
    torch.testing.assert_close(fed(model, cache, tokens[:, 20:]), expected, **TIGHT)


def test_a_crop_beyond_the_rollback_is_refused_and_changes_nothing():
    model, tokens = build(), draw(length=60)
    cache = model.new_cache(rollback=5)
    fed(model, cache, tokens[:, :40], [40])
    with pytest.raises(ValueError, match=r"n must be from 0 to 5 .* got 6"):
        cache.crop(6)
    with pytest.raises(ValueError, match="got -1"):
        cache.crop(-1)
    with pytest.raises(ValueError, match=r"n must be an integer, got 2.5"):
        cache.crop(2.5)
    torch.testing.assert_close(fed(model, cache, tokens[:, 40:]), full(model, tokens)[:, 40:], **TIGHT)


def test_what_two_crops_take_back_counts_together_until_it_is_replaced():
    model = build()
    cache = model.new_cache(rollback=5)
    fed(model, cache, draw(length=40), [40])
    cache.crop(3)
    with pytest.raises(ValueError, match="n must be from 0 to 2 "):
        cache.crop(3)
    fed(model, cache, draw(length=2))
    with pytest.raises(ValueError, match="n must be from 0 to 4 "):
        cache.crop(5)
    cache.crop(4)
    fed(model, cache, draw(length=10))
    cache.crop(5)
    assert cache.length == 40


def test_a_cache_of_global_heads_alone_crops_as_far_as_it_goes():
    model, tokens = build(plan=HeadPlan.full(4)), draw(length=50)
    cache = model.new_cache(rollback=0)
    fed(model, cache, draw(length=50, seed=3), [50])
    cache.crop(50)
    torch.testing.assert_close(fed(model, cache, tokens, [20]), full(model, tokens), **TIGHT)


@pytest.mark.parametrize("max_length", [None, 130])
@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_while_it_records_the_past_everything_since_the_last_crop_can_be_taken_back(max_length, chunk):
    model, tokens = build(window=5, n_global=1), draw(length=120)
    expected = full(model, tokens)
    cache = model.new_cache(rollback=3, max_length=max_length)
    fed(model, cache, tokens[:, :20], [20])
    cache.activate_past_recording()
    for seed in range(3):
        fed(model, cache, draw(length=50, seed=seed), [chunk])
        cache.crop(50)
        assert cache.length == 20
    torch.testing.assert_close(fed(model, cache, tokens[:, 20:], [3, 1]), expected[:, 20:], **TIGHT)


def test_a_recorded_prompt_may_be_taken_back_whole():
    model, tokens = build(window=5, n_global=1), draw(length=100)
    cache = model.new_cache(rollback=0)
    cache.activate_past_recording()
    fed(model, cache, draw(length=100, seed=4), [100])
    cache.crop(100)
    torch.testing.assert_close(fed(model, cache, tokens, [9]), full(model, tokens), **TIGHT)


@pytest.mark.parametrize("ending", ["crop", "reset"])
def test_what_was_recorded_is_given_back_at_the_next_crop(ending):
    model = build(window=5, n_global=0)
    cache = model.new_cache(rollback=3, max_length=200)
    size = cache.nbytes
    cache.activate_past_recording()
    fed(model, cache, draw(length=120), [120])
    assert cache.nbytes > 10 * size
    if ending == "crop":
        cache.crop(0)
        with pytest.raises(ValueError, match="n must be from 0 to 3 "):
            cache.crop(4)
    else:
        cache.reset()
    assert cache.nbytes == size


def test_rings_grow_with_what_came_since_the_last_crop_only():
    model = build(window=5, n_global=0)
    cache = model.new_cache(rollback=3, max_length=200)
    size = cache.nbytes
    cache.activate_past_recording()
    for seed in range(10):
        cache.crop(min(seed, 1))
        model(draw(length=3, seed=seed), cache=cache)
    assert (cache.length, cache.nbytes) == (21, size)


def test_a_cache_that_records_the_past_does_so_after_a_reset():
    model, tokens = build(window=5, n_global=1), draw(length=40)
    cache = model.new_cache(rollback=3)
    cache.activate_past_recording()
    fed(model, cache, draw(length=50, seed=4), [50])
    cache.crop(0)
    cache.reset()
    fed(model, cache, draw(length=40, seed=5), [8])
    cache.crop(40)
    torch.testing.assert_close(fed(model, cache, tokens, [9]), full(model, tokens), **TIGHT)


@settings(max_examples=25)
@given(st.data())
def test_random_recording_equals_a_plain_recomputation(data):
    model = build(window=5, n_global=1, n_layers=1)
    rollback = data.draw(st.integers(0, 6))
    cache, held = model.new_cache(rollback=rollback), torch.empty(1, 0, dtype=torch.long)
    cache.activate_past_recording()
    since = 0
    for seed in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            new = draw(1, data.draw(st.integers(1, 30)), seed=seed)
            got, past = model(new, cache=cache).logits, held.shape[1]
            held, since = torch.cat((held, new), dim=1), since + new.shape[1]
            torch.testing.assert_close(got, full(model, held)[:, past:], **TIGHT)
        else:
            # What it then says it can take back besides must be right as well.
            for n in (data.draw(st.integers(0, since)), data.draw(st.integers(0, 3))):
                try:
                    cache.crop(n)
                except ValueError:
                    assert n > since
                else:
                    held, since = held[:, : held.shape[1] - n], 0


@settings(max_examples=40)
@given(st.data())
def test_random_appends_crops_and_reorders_equal_a_plain_recomputation(data):
    model = build(window=5, n_global=1, n_layers=1)
    cache, held = model.new_cache(batch_size=2, rollback=4), torch.empty(2, 0, dtype=torch.long)
    spare = 4
    for seed in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["append", "append", "crop", "reorder"]))
        if action == "append":
            new = draw(2, data.draw(st.integers(1, 20)), seed=seed)
            got, past = model(new, cache=cache).logits, held.shape[1]
            held, spare = torch.cat((held, new), dim=1), min(4, spare + new.shape[1])
            torch.testing.assert_close(got, full(model, held)[:, past:], **TIGHT)
        elif action == "crop":
            n = data.draw(st.integers(0, min(spare, held.shape[1])))
            cache.crop(n)
            held, spare = held[:, : held.shape[1] - n], spare - n
        else:
            rows = torch.tensor(data.draw(st.sampled_from([[0, 1], [1, 0], [1, 1]])))
            cache.reorder(rows)
            held = held[rows]


@pytest.mark.parametrize("length", [30, 70])
def test_reorder_select_and_repeat_carry_the_rows_along(length):
    model, tokens, following = build(), draw(batch=3, length=length), draw(batch=4, length=20, seed=2)
    padding = torch.tensor([[0], [4], [9]])
    segments = torch.where(torch.arange(length) < padding, -1, 0)
    cache = model.new_cache(batch_size=3)
    model(tokens, segments=segments, cache=cache)
    held = torch.tensor([2, 0, 0])
    cache.reorder(held)
    cache.select(torch.tensor([0, 1]))
    cache.repeat(2)
    held = held[:2].repeat_interleave(2)
    assert cache.batch_size == 4
    ids = torch.cat((segments[held], torch.zeros(4, 20, dtype=torch.long)), dim=1)
    expected = full(model, torch.cat((tokens[held], following), dim=1), segments=ids)[:, length:]
    torch.testing.assert_close(fed(model, cache, following), expected, **TIGHT)


def test_reorder_keeps_the_memory_where_it_is():
    model = build()
    cache = model.new_cache(batch_size=2, max_length=50)
    before = [pool.k.data_ptr() for layer in cache.layers for pool in layer.pools]
    cache.reorder(torch.tensor([1, 0]))
    fed(model, cache, draw(batch=2, length=50))
    assert [pool.k.data_ptr() for layer in cache.layers for pool in layer.pools] == before


def test_after_a_reset_it_is_as_new_and_keeps_its_memory():
    model, tokens = build(), draw(length=40)
    cache = model.new_cache(max_length=100)
    size = cache.nbytes
    model(draw(length=90), segments=torch.ones(1, 90, dtype=torch.long), positions=torch.arange(90), cache=cache)
    cache.reset()
    assert (cache.length, cache.nbytes) == (0, size)
    torch.testing.assert_close(fed(model, cache, tokens, [7]), full(model, tokens), **TIGHT)
    cache.crop(32)
    assert cache.length == 8


def test_nbytes_is_the_formula_to_the_byte():
    plans = (HeadPlan(windows=(None, None, 16, 16, 4, 2, 500, 1)), HeadPlan.full(8))
    cache = LSCache(plans, n_kv_heads=4, head_dim=6, batch_size=3, max_length=200, rollback=10, dtype=torch.float16)
    rows = (200 + 26 + 14 + 200) + 4 * 200  # kept whole; 16 + 10; 4 + 10; a window past max_length; the second layer
    assert cache.nbytes == rows * 2 * 3 * 6 * 2


def test_one_global_head_of_twelve_shrinks_32k_tokens_elevenfold():
    sizes = {"head_dim": 1, "max_length": 32768, "dtype": torch.float16}
    short = LSCache([HeadPlan.long_short(n_heads=12, n_global=1, window=128)], **sizes)
    assert LSCache([HeadPlan.full(12)], **sizes).nbytes / short.nbytes > 11


def test_a_growing_cache_never_holds_more_than_twice_what_it_needs():
    model = build(plan=HeadPlan(windows=(None, 100, 100, 100)), n_layers=1)
    cache = model.new_cache(rollback=10)
    fed(model, cache, draw(length=240), [1])
    rows = [pool.k.shape[2] for pool in cache.layers[0].pools]
    assert 240 <= rows[0] < 480
    assert rows[1] == 110


def test_appending_writes_one_row_a_head_and_moves_none():
    model = build(n_layers=1)
    cache = model.new_cache(max_length=50, rollback=3)
    for pool in cache.layers[0].pools:
        pool.k.zero_()
    fed(model, cache, draw(length=30), [30])
    before = [pool.k.clone() for pool in cache.layers[0].pools]
    model(draw(length=1), cache=cache)
    for old, pool in zip(before, cache.layers[0].pools, strict=True):
        assert (old != pool.k).any(-1).sum(-1).unique().tolist() == [1]


def test_it_keeps_no_graph():
    model = build()
    assert torch.is_grad_enabled()
    output = model(draw(length=5), draw(length=5), cache=model.new_cache(), return_logits=True)
    assert not output.logits.requires_grad and not output.loss.requires_grad


def test_a_layer_alone_takes_the_cache_of_a_layer():
    plan = HeadPlan(windows=(None, 4, 4, 2))
    layer, x = LSAttention(32, plan, positions="rotary"), torch.randn(2, 30, 32)
    cache = LSCache([plan], head_dim=8, batch_size=2).layers[0]
    parts = [layer(part, cache=cache) for part in x.split((11, 1, 18), dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x).detach(), **TIGHT)


@pytest.mark.parametrize(
    ("plan", "x", "message"),
    [
        (
            HeadPlan.full(4),
            torch.zeros(2, 3, 32),
            "cache must have the plan, KV heads, head dim and smoothing of this layer",
        ),
        (HeadPlan(windows=(4,) * 4), torch.zeros(1, 3, 32), "batch size of the input, 1, got 2"),
        (HeadPlan(windows=(4,) * 4), torch.zeros(2, 9, 32), "cache has max_length 8 and holds 0; got 9 more"),
    ],
)
def test_a_layer_alone_refuses_what_does_not_fit(plan, x, message):
    cache = LSCache([HeadPlan(windows=(4,) * 4)], head_dim=8, batch_size=2, max_length=8).layers[0]
    with pytest.raises(ValueError, match=message):
        LSAttention(32, plan)(x, cache=cache)


def test_loss_counts_on_from_the_cache():
    model, tokens = build(), draw(length=41)
    cache = model.new_cache()
    model(tokens[:, :20], cache=cache, return_logits=False)
    got = model(tokens[:, 20:-1], tokens[:, 21:], cache=cache).loss
    expected = torch.nn.functional.cross_entropy(full(model, tokens)[0, 20:-1], tokens[0, 21:])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("options", "length", "message"),
    [
        ({"max_length": 25}, 6, "cache has max_length 25 and holds 20; got 6 more"),
        ({}, 237, "no longer than the 256 learned positions, got length 257"),
        ({"batch_size": 2}, 1, "batch size of the input, 1, got 2"),
    ],
)
def test_a_bad_call_names_the_fault_and_leaves_the_cache_as_it_was(options, length, message):
    model, tokens = build(), draw(length=25)
    cache = model.new_cache(**options)
    rows = options.get("batch_size", 1)
    model(tokens[:, :20].expand(rows, -1), cache=cache)
    with pytest.raises(ValueError, match=message):
        model(draw(length=length, seed=4), cache=cache)
    got = fed(model, cache, tokens[:, 20:].expand(rows, -1))
    torch.testing.assert_close(got[:1], full(model, tokens)[:, 20:], **TIGHT)


def test_learned_positions_given_before_are_checked_as_they_go_on():
    model = build()
    cache = model.new_cache()
    model(draw(length=2), positions=torch.tensor([254, 255]), cache=cache)
    with pytest.raises(ValueError, match="positions must be from 0 to 255, got values from 256 to 256"):
        model(draw(length=1), cache=cache)


def test_a_cache_of_another_model_is_refused():
    with pytest.raises(ValueError, match="cache must have the plans"):
        build()(draw(), cache=build(window=9, n_global=1).new_cache())
    with pytest.raises(ValueError, match="cache must have the plans"):
        build()(draw(), cache=build(n_layers=3).new_cache())


@pytest.mark.parametrize(
    "then", [lambda model, cache: model(draw(length=1), cache=cache), lambda _, cache: cache.crop(1)]
)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("call", [2, 3])  # one of two pools of the first layer written, and all of it
def test_a_pass_that_fails_half_way_is_noticed(monkeypatch, call, static, then):
    model, tokens = build(window=5, n_global=1), draw(length=60)
    cache = model.new_cache(static=static)
    model(tokens[:, :20], cache=cache)
    calls = count(1)

    def broken(*args, **options):
        if next(calls) == call:
            raise RuntimeError("out of memory")
        return attention(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(layer_cache, "attention", broken)
        model(tokens[:, 20:], cache=cache)
    with pytest.raises(ValueError, match=r"half-written .* call reset\(\)"):
        then(model, cache)
    cache.reset()
    torch.testing.assert_close(fed(model, cache, tokens), full(model, tokens), **TIGHT)


def test_a_layer_that_was_given_tokens_on_its_own_is_noticed():
    model, x = build(), torch.randn(1, 5, 32)
    cache = model.new_cache()
    model.blocks[0].attention(x, cache=cache.layers[0])
    with pytest.raises(ValueError, match="layers of one length"):
        model(draw(length=5), cache=cache)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": -1}, "batch_size must be an integer from 0 to 2\\^31 - 1, got -1"),
        ({"rollback": -1}, "rollback must be an integer from 0 to 2\\^31 - 1, got -1"),
        ({"batch_size": 1.5}, "batch_size must be an integer from 0 to 2\\^31 - 1, got 1.5"),
        ({"max_length": "9"}, "max_length must be an integer from 1 to 2\\^31 - 1, got '9'"),
        ({"dtype": torch.int64}, "dtype must be a floating-point type, got torch.int64"),
        ({"max_length": 0}, "max_length must be an integer from 1 to 2\\^31 - 1, got 0"),
    ],
)
def test_bad_sizes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        build().new_cache(**options)


@pytest.mark.parametrize("kind", [LSCache, partial(LSStaticCache, max_length=8)])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"plans": HeadPlan.full(2)},
            "plans must be a sequence of HeadPlan or LayerReach, one per layer, got HeadPlan",
        ),
        ({"plans": [None]}, r"plans must be a sequence of HeadPlan or LayerReach, one per layer, got \['NoneType'\]"),
        ({"n_kv_heads": 0}, "n_kv_heads must be an integer from 1 to 2\\^31 - 1, got 0"),
        ({"dtype": "float32"}, "dtype must be a floating-point type, got float32"),
        ({"smoothing": 3}, r"smoothing must be None or a Smoothing, got 3: Smoothing\(width=...\)"),
    ],
)
def test_what_no_cache_can_be_made_of_is_named(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**({"plans": [HeadPlan.full(2)], "head_dim": 4} | options))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache: cache.reorder(torch.tensor([0])), r"rows must have shape \(2,\), got \(1,\)"),
        (lambda cache: cache.select(torch.tensor([0, 2])), r"rows must be from 0 to 1, got \[0, 2\]"),
        (lambda cache: cache.select(torch.tensor([0.0])), "rows must be int64"),
        (lambda cache: cache.select([0]), r"rows must be an int64 tensor of shape \(n,\), got list"),
        (lambda cache: cache.reorder([0, 1]), r"rows must be an int64 tensor of shape \(n,\), got list"),
        (lambda cache: cache.repeat(1.5), "n must be an integer from 1 to 2\\^31 - 1, got 1.5"),
        (lambda cache: cache.repeat(0), "n must be an integer from 1 to 2\\^31 - 1, got 0"),
    ],
)
def test_bad_rows_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(build().new_cache(batch_size=2))


@pytest.mark.parametrize("rollback", [0, 3])
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_a_plain_token_on_a_cpu_takes_the_kernel_alone(monkeypatch, rollback, n_kv_heads):
    model, tokens = build(n_global=4 // n_kv_heads, n_kv_heads=n_kv_heads), draw(batch=2, length=40)
    cache = poison(model.new_cache(2, rollback=rollback))
    got = [model(tokens[:, :9], cache=cache).logits]
    monkeypatch.setattr("longshort.nn.layer_cache.attention", None)  # what a chunk calls
    got += [model(part, cache=cache).logits for part in tokens[:, 9:].split(1, dim=1)]
    torch.testing.assert_close(torch.cat(got, dim=1), full(model, tokens), **TIGHT)


@pytest.mark.parametrize("options", [{"softcap": 0.5}, {"plan": HeadPlan.las(n_heads=4, max_decay=0.5)}])
def test_what_the_kernel_cannot_do_for_a_token_is_left_to_the_op(options):
    model, tokens = build(**options), draw(length=40)
    torch.testing.assert_close(fed(model, model.new_cache(), tokens, [9, 1]), full(model, tokens), **TIGHT)


def test_rows_lie_where_their_layer_computes():
    model, tokens = build(smoothing=3), draw(length=60)
    cache = model.new_cache()
    for layer in cache.layers:
        for store in layer.stores:
            store.follow(torch.device("meta"))
    torch.testing.assert_close(fed(model, cache, tokens, [20, 1]), full(model, tokens), **TIGHT)
    assert {store.k.device for layer in cache.layers for store in layer.stores} == {tokens.device}


def test_a_compiled_step_has_no_graph_breaks():
    torch._dynamo.reset()
    model, tokens = build(n_layers=1), draw(length=5)
    compiled, cache = torch.compile(model, backend="eager", fullgraph=True), model.new_cache()
    with torch.no_grad():
        model(tokens[:, :4], cache=cache)
        step = compiled(tokens[:, 4:], cache=cache).logits
    torch.testing.assert_close(step, full(model, tokens)[:, 4:], **TIGHT)
    torch._dynamo.reset()
