"""What a task is: splits of examples, each a sequence of tokens with one label, or with targets at some positions.

Pure data in NumPy: generators and loaders make it, `longshort.data.tasks.example_stream` cuts it into batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.data.tokenizer import Tokenizer

IGNORED = -100
"""Target of a position that is not asked about."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Sequences of tokens, concatenated in one array, each with a label or with targets.

    >>> examples = Examples.of_rows([([3, 1, 2], 1), ([2, 2], 0)], vocab_size=4)
    >>> len(examples), examples[0]
    (2, (array([3, 1, 2], dtype=uint8), 1))
    """

    tokens: NDArray[Any]
    """(sum of lengths,) unsigned integers"""
    offsets: NDArray[np.int64]
    """(examples + 1,): example i is tokens[offsets[i] : offsets[i + 1]]"""
    labels: NDArray[np.int64] | None = None
    """(examples,): the class of each example"""
    targets: NDArray[Any] | None = None
    """(sum of lengths,): the token to predict at each position, -100 where nothing is asked"""

    def __post_init__(self) -> None:
        if (self.labels is None) == (self.targets is None):
            raise ValueError("exactly one of labels and targets must be given, got neither or both")
        if self.offsets.ndim != 1 or not len(self.offsets) or self.offsets[0] or self.offsets[-1] != len(self.tokens):
            raise ValueError(f"offsets must go from 0 to the {len(self.tokens)} tokens, got {self.offsets!r}")
        other = (self.labels, len(self)) if self.labels is not None else (self.targets, len(self.tokens))
        if other[0] is not None and other[0].shape != (other[1],):
            raise ValueError(f"labels or targets must have {other[1]} entries, got shape {other[0].shape}")

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[Any, Any]], *, vocab_size: int) -> Examples:
        """From (tokens, label) or (tokens, targets) pairs."""
        tokens, answers = [], []
        for row, answer in rows:
            tokens.append(np.asarray(row, dtype=token_dtype(vocab_size)))
            answers.append(answer)
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in tokens], dtype=np.int64))).astype(np.int64)
        flat = np.concatenate(tokens) if tokens else np.zeros(0, dtype=token_dtype(vocab_size))
        if answers and np.ndim(answers[0]):
            return cls(tokens=flat, offsets=offsets, targets=np.concatenate(answers).astype(np.int32))
        return cls(tokens=flat, offsets=offsets, labels=np.array(answers, dtype=np.int64))

    @classmethod
    def of_table(cls, tokens: NDArray[Any], labels: NDArray[Any]) -> Examples:
        """From sequences of one length, (examples, T), and their labels."""
        rows, length = tokens.shape
        offsets = np.arange(rows + 1, dtype=np.int64) * length
        return cls(tokens=tokens.reshape(-1), offsets=offsets, labels=labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> tuple[NDArray[Any], Any]:
        """(tokens, label) or (tokens, targets) of one example."""
        if not 0 <= row < len(self):
            raise IndexError(f"row must be from 0 to {len(self) - 1}, got {row}")
        place = slice(self.offsets[row], self.offsets[row + 1])
        answer = int(self.labels[row]) if self.labels is not None else self.targets[place]  # type: ignore[index]
        return self.tokens[place], answer

    def chosen(self, rows: Iterable[int]) -> Examples:
        """Some of the examples, in the order given."""
        picked = [self[int(row)] for row in rows]
        return Examples.of_rows(picked, vocab_size=int(np.iinfo(self.tokens.dtype).max) + 1)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Train, validation and test examples, and what a model must know about them."""

    name: str
    vocab_size: int
    n_classes: int | None
    """Number of classes; None if the targets are tokens of the vocabulary at marked positions."""
    length: int
    """Length of the longest possible sequence; batches have this length."""
    padding: int | None
    """Token that pads shorter sequences; None if every sequence has the full length."""
    splits: Mapping[str, Examples]
    """By name: train, validation, test."""
    fingerprint: str
    """Identifies what the examples are made from: a resumed run must find the same."""
    kinds: tuple[str, ...] = ()
    """Kinds of examples that take turns: example i of every split is of kind i modulo their number."""
    tokenizer: Tokenizer | None = None
    """Of a task whose tokens are text."""


def token_dtype(vocab_size: int) -> Any:
    """The smallest unsigned type that holds every token."""
    return np.uint8 if vocab_size <= 1 << 8 else np.uint16 if vocab_size <= 1 << 16 else np.uint32
