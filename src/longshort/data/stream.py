"""Batches from a token file: a pure function of (seed, step, rank, world size).

A resumed run gets the batches it would have got; the only state to save is the step. Letters: b the sequences of one
rank's share, T the length of a window, which is T + 1 tokens: T inputs and the T targets, one position later.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longshort.data.corruption import Corruption
from longshort.data.errors import DataError
from longshort.data.permutation import Permutation
from longshort.data.tokens import TokenFile


class Batch(NamedTuple):
    """One rank's share of a step."""

    tokens: Tensor
    """(b, T) int64"""
    targets: Tensor
    """(b, T) int64: the tokens one position later"""
    segments: Tensor | None
    """(b, T) int64: the number of each token's document within its window, from 0; None unless asked for"""
    indices: tuple[int, ...]
    """The number of each sequence's window within its epoch"""

    def shard(self, place: int, places: int) -> Batch:
        """Of all its sequences, the positions of one of `places` processes that share them equally.

        >>> Batch(torch.arange(6).view(1, 6), torch.arange(1, 7).view(1, 6), None, (0,)).shard(1, 3).tokens
        tensor([[2, 3]])
        """
        if places == 1:
            return self
        tokens, targets = (x.chunk(places, dim=1)[place] for x in self[:2])
        segments = None if self.segments is None else self.segments.chunk(places, dim=1)[place]
        return Batch(tokens, targets, segments, self.indices)


class Window(NamedTuple):
    """One step of a sliding window over a split."""

    tokens: Tensor
    """(T,) int64: what goes before every window, if anything does, and tokens of the file"""
    targets: Tensor
    """(S,) int64: what follows the last S of them, all of the file; S is `targets_of_window`"""
    fresh: int
    """Targets from here on were in no earlier window: scoring only those counts every target once."""
    start: int
    """Position in the file of its first token"""


class TokenStream:
    """Shuffled windows of a token file.

    Each epoch goes through all windows once, in its own order. Windows are adjacent; their start shifts from epoch to
    epoch by up to one length, so that the cuts are not always the same. The sequences of a step are the same for every
    world size: rank r takes the r-th of equal contiguous shares.

    Args:
        batch_size: Sequences per step over all ranks.
        length: Inputs per sequence, T.
        segments: Also number the documents within each sequence.
        corruption: Share of tokens replaced by random ones; see `Corruption`.
        share: Share of the file that is read, from its beginning.
    """

    def __init__(
        self,
        token_file: TokenFile,
        *,
        batch_size: int,
        length: int,
        seed: int,
        segments: bool = False,
        corruption: float = 0.0,
        share: float = 1.0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if not 0 < share <= 1:
            raise ValueError(f"share must be a number above 0 and at most 1, got {share}")
        _check_length(token_file, length, share=share)
        count = int(share * len(token_file))
        self.token_file = token_file
        self._tokens = np.asarray(token_file.tokens)  # of the same memory: slicing a memmap is several times slower
        self.batch_size = batch_size
        self.length = length
        self.seed = seed
        self.segments = segments
        self._corruption = Corruption(
            corruption, vocab_size=token_file.vocab_size, kept=token_file.end_of_document, seed=seed
        )
        # Leave one window of room for the start to shift, if the file is long enough.
        self.windows_per_epoch = max(1, count // length - 1)
        self._room = min(length - 1, count - 1 - self.windows_per_epoch * length)
        self._order = functools.lru_cache(maxsize=4)(self._order_of)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """The sequences of `rank` in step `step`, counted from 0."""
        first, share = rows_of_rank(step, self.batch_size, rank, world_size)
        indices, starts = self._windows(first, share)
        rows = np.stack([self._row(start) for start in starts])
        tokens, targets = torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        segments = document_numbers(tokens, self.token_file.end_of_document) if self.segments else None
        return Batch(tokens, targets, segments, tuple(indices))

    def _row(self, start: int) -> NDArray[np.int64]:
        row = self._tokens[start : start + self.length + 1].astype(np.int64)
        return self._corruption(row, start)

    def _windows(self, first: int, count: int) -> tuple[list[int], list[int]]:
        """Numbers and starts of `count` windows in the endless series of epochs."""
        indices: list[int] = []
        starts: list[int] = []
        while count:
            epoch, place = divmod(first, self.windows_per_epoch)
            taken = min(count, self.windows_per_epoch - place)
            order, offset = self._order(epoch)
            chosen = order(np.arange(place, place + taken)).tolist()
            indices += chosen
            starts += [offset + index * self.length for index in chosen]
            first, count = first + taken, count - taken
        return indices, starts

    def _order_of(self, epoch: int) -> tuple[Permutation, int]:
        key = f"{self.seed}/{epoch}"
        number = int.from_bytes(hashlib.blake2b(f"offset/{key}".encode(), digest_size=8).digest(), "little")
        return Permutation(self.windows_per_epoch, key), number % (self._room + 1)


def rows_of_rank(step: int, batch_size: int, rank: int, world_size: int) -> tuple[int, int]:
    """The first sequence of a rank's share of a step, numbered over all steps, and how many it takes.

    >>> rows_of_rank(step=2, batch_size=8, rank=1, world_size=4)
    (18, 2)
    """
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to world_size - 1, got {rank} and {world_size}")
    if batch_size % world_size:
        raise ValueError(f"batch_size must be a multiple of the {world_size} ranks, got {batch_size}")
    share = batch_size // world_size
    return step * batch_size + rank * share, share


def document_numbers(tokens: Tensor, end_of_document: int) -> Tensor:
    """Number the documents of each sequence from 0, (b, T) to (b, T) int64; an end token belongs to the one it ends.

    >>> document_numbers(torch.tensor([[5, 256, 6, 7, 256]]), 256)
    tensor([[0, 0, 1, 1, 1]])
    """
    ends = (tokens == end_of_document).long()
    return ends.cumsum(dim=-1) - ends


def windows(
    token_file: TokenFile, length: int, stride: int, limit: int | None = None, beginning: Sequence[int] = ()
) -> Iterator[Window]:
    """Windows over a whole split, in order, starting `stride` tokens apart; the last one ends where the split does.

    Every target is fresh in exactly one window, so without a `limit` the fresh targets are the whole split except its
    first token. `limit` stops after that many windows. A `beginning` is the first of the `length` tokens of every
    window and never a target; the first token of the split then is one.
    """
    _check_length(token_file, length, before=len(beginning))
    most = targets_of_window(length, beginning)
    if not 1 <= stride <= most:
        raise ValueError(f"stride must be from 1 to {most}, the targets of a window, got {stride}")
    last = len(token_file) - 1 - (length - len(beginning))
    starts = itertools.chain(range(0, last, stride), [last])
    return _slide(token_file.tokens, length, itertools.islice(starts, limit), torch.tensor(beginning).long())


def targets_of_window(length: int, beginning: Sequence[int] = ()) -> int:
    """How many targets a window has.

    >>> targets_of_window(8), targets_of_window(8, [1]), targets_of_window(8, [1, 2])
    (8, 8, 7)
    """
    return length - max(0, len(beginning) - 1)


def _slide(tokens: NDArray[Any], length: int, starts: Iterable[int], beginning: Tensor) -> Iterator[Window]:
    seen, own = 0, length - len(beginning)
    for start in starts:
        text = torch.from_numpy(tokens[start : start + own + 1].astype(np.int64))
        row = torch.cat((beginning, text))
        targets = row[max(1, len(beginning)) :]
        yield Window(row[:-1], targets, seen - start, start)
        seen = start + len(targets)


def _check_length(token_file: TokenFile, length: int, *, before: int = 0, share: float = 1.0) -> None:
    """Raise unless the file, or this share of it, has a window of this length."""
    if length < max(1, before):
        raise ValueError(f"length must be at least {max(1, before)}, got {length}")
    if not len(token_file):
        split = token_file.path.stem
        raise DataError(
            f"{token_file.path}: empty, since this data has no {split} split; prepare the data with a share for it "
            "(longshort data --split 0.9 0.05 0.05) or with a source of its own"
        )
    count, needed = int(share * len(token_file)), length + 1 - before
    if count < needed:
        part = f", of which the share of {share:g} is {count:,}" if share < 1 else ""
        raise DataError(
            f"{token_file.path}: {len(token_file):,} tokens{part}, but one window of length {length:,} needs "
            f"{needed:,}; give a longer text{', a larger data.share' if part else ''} or a smaller length"
        )
