"""Batches of examples: a function of seed and step alone, in shares that do not depend on the number of ranks."""

import pytest
import torch

from longshort.data.tasks import IGNORED, Examples, Task
from longshort.data.tasks.example_stream import ExampleStream


def labelled(rows=10, padding=0):
    examples = Examples.of_rows([([1] * (1 + i % 4), i) for i in range(rows)], vocab_size=8)
    return Task(
        name="t", vocab_size=8, n_classes=rows, length=4, padding=padding, splits={"train": examples}, fingerprint=""
    )


def test_an_epoch_holds_every_row_once_and_the_next_has_another_order():
    stream = ExampleStream(labelled(), "train", batch_size=5, seed=0)
    epochs = [stream.batch(2 * e).targets.tolist() + stream.batch(2 * e + 1).targets.tolist() for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_depends_on_seed_and_step_alone():
    first, again, other = (ExampleStream(labelled(), "train", batch_size=3, seed=s) for s in (0, 0, 1))
    again.batch(7)
    assert first.batch(4).targets.equal(again.batch(4).targets)
    assert [first.batch(s).targets.tolist() for s in range(3)] != [other.batch(s).targets.tolist() for s in range(3)]


def test_ranks_share_the_rows_of_a_step():
    stream = ExampleStream(labelled(), "train", batch_size=6, seed=0)
    shares = [stream.batch(3, rank=rank, world_size=3) for rank in range(3)]
    assert torch.cat([share.tokens for share in shares]).equal(stream.batch(3).tokens)
    with pytest.raises(ValueError, match="must be a multiple of the 4 ranks"):
        stream.batch(0, world_size=4)


def test_shorter_rows_are_padded_and_marked():
    batch = ExampleStream(labelled(padding=7), "train", batch_size=10, seed=0).batch(0)
    for tokens, segments, label in zip(batch.tokens, batch.segments, batch.targets, strict=True):
        length = 1 + int(label) % 4
        assert tokens.tolist() == [1] * length + [7] * (4 - length)
        assert segments.tolist() == [0] * length + [-1] * (4 - length)


def test_rows_of_one_length_have_no_segments():
    examples = Examples.of_rows([([1, 2], [IGNORED, 1]), ([2, 1], [IGNORED, 2])], vocab_size=8)
    task = Task(
        name="t", vocab_size=8, n_classes=None, length=2, padding=None, splits={"test": examples}, fingerprint=""
    )
    batch = ExampleStream(task, "test", batch_size=2, seed=0).batch(0)
    assert batch.segments is None and batch.targets[:, 0].tolist() == [IGNORED] * 2
    assert sorted(batch.targets[:, 1].tolist()) == [1, 2]


def test_in_order_gives_every_row_once():
    batches = list(ExampleStream(labelled(), "train", batch_size=4, seed=0).in_order())
    assert [len(batch.tokens) for batch in batches] == [4, 4, 2]
    assert torch.cat([batch.targets for batch in batches]).tolist() == list(range(10))


@pytest.mark.parametrize("ranks", [1, 2])
def test_once_asks_nothing_of_what_would_repeat_an_example(ranks):
    stream = ExampleStream(labelled(rows=5), "train", batch_size=4, seed=0)
    for count, sizes in ((1, 1), (2, 2), (9, 2)):
        shares = [list(stream.once(count, rank=rank, world_size=ranks)) for rank in range(ranks)]
        assert all([batch.tokens.shape for batch in share] == [(4 // ranks, 4)] * sizes for share in shares)
        asked = [label for share in shares for batch in share for label in batch.targets.tolist() if label != IGNORED]
        assert len(asked) == len({*asked}) == min(4 * count, 5)
