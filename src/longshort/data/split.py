"""Decides which text is for training, which for validation and which for the test.

The split is by document if there are enough of them. Otherwise each document is cut: its beginning is for training, its
end for the other two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longshort.data.corpus import SPLITS, Corpus
from longshort.data.errors import DataError

_GOLDEN = (math.sqrt(5) - 1) / 2


class Assigned(NamedTuple):
    """A piece of text and the split it goes to."""

    split: str
    text: str
    ends_document: bool
    read: int


@dataclass(frozen=True)
class ByCorpus:
    """Each split has its own text."""

    corpora: Mapping[str, Corpus]

    def pieces(self) -> Iterator[Assigned]:
        before = 0
        for split, corpus in self.corpora.items():
            for piece in corpus.pieces():
                yield Assigned(split, piece.text, piece.ends_document, before + piece.read)
            before += corpus.size or 0


@dataclass(frozen=True)
class ByDocument:
    """Whole documents, spread evenly by the golden ratio.

    Multiples of the golden ratio leave no gap wider than 2 / n among n points, so every share of at least 2 / n gets a
    document, unlike with a random draw; and they do not fall in step with any period of the corpus.
    """

    corpus: Corpus
    shares: tuple[float, float, float]
    seed: int
    first: int = 0
    """The number of the corpus's first document"""

    def pieces(self) -> Iterator[Assigned]:
        number = self.first
        split = self._split_of(number)
        for piece in self.corpus.pieces():
            yield Assigned(split, piece.text, piece.ends_document, piece.read)
            if piece.ends_document:
                number += 1
                split = self._split_of(number)

    def _split_of(self, number: int) -> str:
        shift = int.from_bytes(hashlib.sha256(str(self.seed).encode()).digest()[:4]) / 2**32
        point = (shift + number * _GOLDEN) % 1
        return SPLITS[(point >= self.shares[0]) + (point >= self.shares[0] + self.shares[1])]


@dataclass(frozen=True)
class ByPlace:
    """Every document cut in three, for corpora of few documents, such as one book."""

    corpus: Corpus
    shares: tuple[float, float, float]
    lengths: tuple[int, ...]
    """Characters of each document"""

    def pieces(self) -> Iterator[Assigned]:
        lengths = iter(self.lengths)
        borders: list[int] = []
        place = 0
        for piece in self.corpus.pieces():
            if not borders:
                length = next(lengths, None)
                if length is None:
                    raise DataError(f"{self.corpus.description}: changed while it was read; run the same command again")
                borders = self._borders(length)
                place = 0
            start = 0
            for split, border in zip(SPLITS, borders, strict=True):
                part = piece.text[start : max(start, border - place)]
                start += len(part)
                if part:
                    yield Assigned(split, part, place + start == border, piece.read)
            place += len(piece.text)
            if piece.ends_document:
                borders = []

    def _borders(self, length: int) -> list[int]:
        first = round(length * self.shares[0])
        return [first, round(length * (self.shares[0] + self.shares[1])), length]


Division = ByCorpus | ByDocument | ByPlace


def size_of(division: Division) -> int | None:
    """Bytes as stored, or None if a part of the text does not know its size."""
    corpora = division.corpora.values() if isinstance(division, ByCorpus) else [division.corpus]
    sizes = [corpus.size for corpus in corpora]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def excerpt(division: Division, counts: Mapping[str, Sequence[int]], start: int, stop: int) -> Division:
    """The documents of a division from number `start` up to `stop`, each in the split where it was.

    Args:
        counts: For each corpus, by the name of its split, the number of documents of each of its parts.
    """
    match division:
        case ByDocument(corpus, shares, seed):
            return ByDocument(corpus.excerpt(counts["train"], start, stop), shares, seed, start)
        case ByPlace(corpus, shares, lengths):
            return ByPlace(corpus.excerpt(counts["train"], start, stop), shares, lengths[start:stop])
        case ByCorpus(corpora):
            chosen, before = {}, 0
            for split, corpus in corpora.items():
                total = sum(counts[split])
                inside = (min(max(number - before, 0), total) for number in (start, stop))
                chosen[split] = corpus.excerpt(counts[split], *inside)
                before += total
            return ByCorpus(chosen)


def divide(corpus: Corpus, shares: tuple[float, float, float], seed: int) -> Division:
    """Divide a corpus by shares; reads only enough of it to know whether there are enough documents."""
    if (
        len(shares) != 3
        or not all(0 <= share <= 1 for share in shares)
        or not math.isclose(sum(shares), 1, abs_tol=1e-6)
    ):
        raise DataError(f"split must be three shares of train, validation and test that add up to 1, got {shares}")
    if shares[0] == 0:
        raise DataError(f"split must have a share for training, got {shares}")
    if shares[0] == 1:
        return ByCorpus({"train": corpus})
    enough = math.ceil(2 / min(share for share in shares if share > 0))
    lengths = [0]
    for piece in corpus.pieces():
        lengths[-1] += len(piece.text)
        if piece.ends_document:
            if len(lengths) == enough:
                return ByDocument(corpus, shares, seed)
            lengths.append(0)
    return ByPlace(corpus, shares, tuple(lengths[:-1]))
