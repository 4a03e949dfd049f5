"""Batches from the examples of a task: a pure function of (seed, step, rank, world size), as for text.

Letters: b the sequences of one rank's share, T the task's length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from longshort.data.permutation import Permutation
from longshort.data.stream import Batch, rows_of_rank
from longshort.data.tasks.examples import IGNORED, Task


class ExampleStream:
    """Shuffled examples of one split; each epoch goes through all of them once, in its own order.

    A batch is a `longshort.data.stream.Batch`: tokens (b, T), targets (b,) for labels or (b, T) with -100 where nothing
    is asked, and, for a task with padding, segments (b, T) that are -1 on the padding and 0 elsewhere.

    >>> from longshort.data.tasks import Examples
    >>> rows = Examples.of_rows([([1, 2, 3], 0), ([3, 2], 1)], vocab_size=4)
    >>> task = Task(name="toy", vocab_size=4, n_classes=2, length=3, padding=0, splits={"train": rows}, fingerprint="")
    >>> batch = ExampleStream(task, "train", batch_size=2, seed=0).batch(0)
    >>> batch.tokens.shape, sorted(batch.targets.tolist())
    (torch.Size([2, 3]), [0, 1])
    """

    def __init__(self, task: Task, split: str, *, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.task, self.batch_size, self.seed = task, batch_size, seed
        self.examples = task.splits[split]
        self._order = functools.lru_cache(maxsize=4)(self._order_of)

    def __len__(self) -> int:
        return len(self.examples)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """The examples of `rank` in step `step`, counted from 0."""
        first, share = rows_of_rank(step, self.batch_size, rank, world_size)
        indices: list[int] = []
        while len(indices) < share:
            epoch, place = divmod(first + len(indices), len(self.examples))
            taken = min(share - len(indices), len(self.examples) - place)
            indices += self._order(epoch)(np.arange(place, place + taken)).tolist()
        return self._rows(indices)

    def once(self, batches: int, *, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """The first `batches` batches of `rank`, or fewer: each example counts once, and where the last batch would
        repeat some, it asks nothing.

        Every rank gets as many batches of the same size, since processes that share a model compute together.
        """
        for step in range(min(batches, math.ceil(len(self) / self.batch_size))):
            batch = self.batch(step, rank=rank, world_size=world_size)
            first, _ = rows_of_rank(step, self.batch_size, rank, world_size)
            batch.targets[max(0, len(self) - first) :] = IGNORED
            yield batch

    def in_order(self) -> Iterator[Batch]:
        """Every example of the split once, in order; the last batch may be smaller."""
        for first in range(0, len(self.examples), self.batch_size):
            yield self._rows(range(first, min(first + self.batch_size, len(self.examples))))

    def _rows(self, indices: Sequence[int]) -> Batch:
        task, length = self.task, self.task.length
        shape = (len(indices), length)
        tokens = np.full(shape, task.padding or 0, dtype=np.int64)
        marked = task.n_classes is None
        targets = np.full(shape if marked else len(indices), IGNORED, dtype=np.int64)
        segments = np.full(shape, -1, dtype=np.int64)
        for place, index in enumerate(indices):
            row, answer = self.examples[index]
            tokens[place, : len(row)] = row
            segments[place, : len(row)] = 0
            if marked:
                targets[place, : len(row)] = answer
            else:
                targets[place] = answer
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            None if task.padding is None else torch.from_numpy(segments),
            tuple(indices),
        )

    def _order_of(self, epoch: int) -> Permutation:
        return Permutation(len(self.examples), f"{self.seed}/{epoch}")
