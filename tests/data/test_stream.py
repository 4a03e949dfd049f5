"""Batches and windows: deterministic, complete, and the same however they are shared out."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort.data.errors import DataError
from longshort.data.stream import TokenStream, document_numbers, targets_of_window, windows
from longshort.data.tokenizer import ByteTokenizer
from longshort.data.tokens import TokenFile, write_token_file


class Numbers(ByteTokenizer):
    vocab_size = 1 << 20


@functools.cache
def counting(count):
    """A file that holds 0, 1, 2, ...: a token is its own place."""
    with tempfile.TemporaryDirectory() as folder:
        # Open files outlive their folder.
        return write_token_file(Path(folder, "train.tokens"), [np.arange(count, dtype=np.uint32)], Numbers())


SIZES = st.sampled_from([5, 9, 10, 11, 12, 30, 31, 100, 257])
LENGTHS = st.integers(1, 4)


@given(count=SIZES, length=LENGTHS, batch_size=st.integers(1, 7), seed=st.integers(), step=st.integers(0, 10**9))
def test_targets_are_the_tokens_one_further_on(count, length, batch_size, seed, step):
    batch = TokenStream(counting(count), batch_size=batch_size, length=length, seed=seed).batch(step)
    assert batch.tokens.shape == batch.targets.shape == (batch_size, length)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert torch.equal(batch.tokens, batch.tokens[:, :1] + torch.arange(length))
    assert batch.targets.max() < count
    assert batch.segments is None


@settings(max_examples=60)
@given(count=SIZES, length=LENGTHS, batch_size=st.integers(1, 7), seed=st.integers())
def test_no_window_comes_twice_in_an_epoch_and_none_is_left_out(count, length, batch_size, seed):
    stream = TokenStream(counting(count), batch_size=batch_size, length=length, seed=seed)
    n = stream.windows_per_epoch
    batches = [stream.batch(step) for step in range(-(-3 * n // batch_size))]
    indices = [index for batch in batches for index in batch.indices]
    starts = torch.cat([batch.tokens[:, 0] for batch in batches]).tolist()
    for epoch in range(3):
        within = slice(epoch * n, (epoch + 1) * n)
        assert sorted(indices[within]) == list(range(n))
        # No token is an input twice either: windows lie end to end from wherever the epoch begins.
        assert sorted(starts[within]) == list(range(min(starts[within]), min(starts[within]) + n * length, length))
    assert n >= max(1, count // length - 1)


@given(
    shape=st.tuples(SIZES, LENGTHS, st.sampled_from([4, 6, 12])),
    seed=st.integers(),
    step=st.integers(0, 1000),
    world_size=st.sampled_from([1, 2]),
)
def test_the_rows_of_a_step_are_the_same_for_every_world_size(shape, seed, step, world_size):
    count, length, batch_size = shape
    stream = TokenStream(counting(count), batch_size=batch_size, length=length, seed=seed)
    whole = stream.batch(step)
    for size in (world_size, batch_size):
        shares = [stream.batch(step, rank=rank, world_size=size) for rank in range(size)]
        assert torch.equal(torch.cat([share.tokens for share in shares]), whole.tokens)
        assert torch.equal(torch.cat([share.targets for share in shares]), whole.targets)
        assert sum((share.indices for share in shares), ()) == whole.indices


@given(count=SIZES, seed=st.integers(), step=st.integers(0, 500))
def test_a_resumed_stream_goes_on_as_if_never_stopped(count, seed, step):
    def stream():
        return TokenStream(counting(count), batch_size=3, length=4, seed=seed, segments=True)

    run = stream()
    for earlier in range(max(0, step - 5), step):
        run.batch(earlier)
    before, after = run.batch(step), stream().batch(step)
    assert all(torch.equal(x, y) for x, y in zip(before[:3], after[:3], strict=True))
    assert before.indices == after.indices


def test_seeds_give_different_orders():
    first, second = (TokenStream(counting(1000), batch_size=8, length=4, seed=seed).batch(0).indices for seed in (0, 1))
    assert first != second


def test_epochs_have_orders_and_beginnings_of_their_own():
    stream = TokenStream(counting(1000), batch_size=1, length=50, seed=0)
    n = stream.windows_per_epoch
    epochs = [[stream.batch(step) for step in range(epoch * n, (epoch + 1) * n)] for epoch in range(4)]
    assert len({tuple(batch.indices for batch in epoch) for epoch in epochs}) == 4
    assert len({min(int(batch.tokens[0, 0]) for batch in epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("length", [2, 5])
def test_epochs_begin_at_every_place_of_the_first_window(length):
    stream = TokenStream(counting(104), batch_size=1, length=length, seed=0)
    n = stream.windows_per_epoch
    begun = {min(int(stream.batch(step).tokens[0, 0]) for step in range(e * n, (e + 1) * n)) for e in range(40)}
    assert begun == set(range(length))


def test_the_caller_may_change_a_batch():
    stream = TokenStream(counting(100), batch_size=2, length=4, seed=0)
    before = stream.batch(0).tokens.clone()
    stream.batch(0).tokens.zero_()
    assert torch.equal(stream.batch(0).tokens, before)


@given(rows=st.lists(st.lists(st.sampled_from([1, 2, 256]), min_size=6, max_size=6), min_size=1, max_size=3))
def test_documents_are_numbered_by_the_ends_before_each_token(rows):
    expected = [[row[:t].count(256) for t in range(len(row))] for row in rows]
    assert document_numbers(torch.tensor(rows), 256).tolist() == expected


def test_segments_follow_the_documents_of_the_file(tmp_path):
    text = np.array([1, 256, 2, 3, 256, 4], dtype=np.uint16)
    file = write_token_file(tmp_path / "train.tokens", [text], ByteTokenizer())
    batch = TokenStream(file, batch_size=1, length=5, seed=0, segments=True).batch(0)
    assert batch.segments.tolist() == [[0, 0, 1, 1, 1]]
    assert batch.segments.dtype == torch.int64


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"step": -1}, "step must be at least 0, got -1"),
        ({"step": 0, "rank": 2, "world_size": 2}, "rank must be from 0 to world_size - 1"),
        ({"step": 0, "world_size": 0}, "rank must be from 0 to world_size - 1"),
        ({"step": 0, "world_size": 3}, "batch_size must be a multiple of the 3 ranks, got 4"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        TokenStream(counting(100), batch_size=4, length=4, seed=0).batch(**arguments)


@given(share=st.floats(0.1, 1.0), seed=st.integers())
def test_of_a_share_of_the_file_only_its_beginning_is_read(share, seed):
    stream = TokenStream(counting(257), batch_size=8, length=4, seed=seed, share=share)
    count = int(257 * share)
    last = max(int(stream.batch(step).targets.max()) for step in range(2 * count // 32 + 1))
    assert count - 2 * 4 <= last < count
    assert stream.windows_per_epoch == max(1, count // 4 - 1)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, float("nan")])
def test_a_share_of_nothing_or_of_more_than_all_is_refused(share):
    with pytest.raises(ValueError, match="share must be a number above 0 and at most 1, got"):
        TokenStream(counting(257), batch_size=8, length=4, seed=0, share=share)


@pytest.mark.parametrize("options", [{"batch_size": 0, "length": 4}, {"batch_size": 4, "length": 0}])
def test_sizes_below_one_are_refused(options):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        TokenStream(counting(100), seed=0, **options)


def test_a_file_shorter_than_a_window_is_refused_by_name():
    TokenStream(counting(10), batch_size=1, length=9, seed=0).batch(0)
    for make in (
        lambda: TokenStream(counting(10), batch_size=1, length=10, seed=0),
        lambda: windows(counting(10), 10, 1),
    ):
        with pytest.raises(DataError, match=r"train\.tokens: 10 tokens, but one window of length 10 needs 11"):
            make()
    short = (
        r"10 tokens, of which the share of 0\.5 is 5, but one .* needs 7; give a longer text, a larger data\.share or"
    )
    with pytest.raises(DataError, match=short):
        TokenStream(counting(10), batch_size=1, length=6, seed=0, share=0.5)


def test_an_empty_split_is_refused(tmp_path):
    write_token_file(tmp_path / "test.tokens", [], ByteTokenizer())
    with pytest.raises(DataError, match="empty, since this data has no test split"):
        windows(TokenFile.open(tmp_path / "test.tokens"), 1, 1)


@given(count=SIZES, length=LENGTHS, data=st.data())
def test_sliding_windows_make_every_target_fresh_once(count, length, data):
    stride = data.draw(st.integers(1, length))
    seen = list(windows(counting(count), length, stride))
    assert torch.cat([window.targets[window.fresh :] for window in seen]).tolist() == list(range(1, count))
    assert all(window.tokens.tolist() == list(range(window.start, window.start + length)) for window in seen)
    assert all(torch.equal(window.targets, window.tokens + 1) for window in seen)
    assert [window.start for window in seen[:-1]] == [i * stride for i in range(len(seen) - 1)]


@given(count=SIZES, limit=st.integers(0, 12))
def test_a_limit_keeps_the_first_windows(count, limit):
    limited = [window.start for window in windows(counting(count), 4, 2, limit)]
    assert limited == [window.start for window in windows(counting(count), 4, 2)][:limit]


@pytest.mark.parametrize("stride", [0, 5])
def test_a_stride_that_stands_still_or_skips_is_refused(stride):
    with pytest.raises(ValueError, match=f"stride must be from 1 to 4, the targets of a window, got {stride}"):
        windows(counting(100), 4, stride)


@given(count=SIZES, length=LENGTHS, data=st.data())
def test_windows_with_a_beginning_make_every_token_of_the_file_fresh_once(count, length, data):
    beginning = [1 << 19, 1 << 18, 1 << 17][: data.draw(st.integers(1, min(3, length)))]
    stride = data.draw(st.integers(1, most := targets_of_window(length, beginning)))
    seen = list(windows(counting(count), length, stride, None, beginning))
    assert torch.cat([window.targets[window.fresh :] for window in seen]).tolist() == list(range(count))
    for window in seen:
        text = list(range(window.start, window.start + length - len(beginning)))
        assert window.tokens.tolist() == beginning + text and window.tokens.dtype == torch.int64
        assert window.targets.tolist() == list(range(window.start, window.start + most))
    assert [window.start for window in seen[:-1]] == [i * stride for i in range(len(seen) - 1)]


def test_a_beginning_takes_its_room_in_the_window():
    assert [window.start for window in windows(counting(10), 10, 10, None, [7])] == [0]
    with pytest.raises(DataError, match=r"10 tokens, but one window of length 11 needs 11"):
        windows(counting(10), 11, 1, None, [7])
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        windows(counting(10), 1, 1, None, [7, 8])
    with pytest.raises(ValueError, match="stride must be from 1 to 3, the targets of a window, got 4"):
        windows(counting(10), 4, 4, None, [7, 8])
