"""Multi-query associative recall (MQAR; Arora et al., arXiv 2312.04927): a probe of sparse long-range dependencies.

A sequence begins with key-value pairs. Later each key comes once more, and at that position the model must predict its
value. Queries come after a gap drawn from a power law, so that most are near and some far; the places between are
filled with other symbols, never with the sequence's keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longshort.data.tasks.examples import IGNORED

POWER = 0.01
"""Exponent of the gaps: the probability of the i-th place is proportional to i^(POWER - 1), as published."""

MOST_SYMBOLS = 1 << 16
"""Sequences are stored as 16-bit integers."""


def check(length: int, pairs: int, symbols: int) -> None:
    """Raise if a sequence has no room for its pairs and queries, or too few symbols for distinct keys."""
    if pairs < 1 or length < 4 * pairs:
        raise ValueError(f"pairs must be from 1 to a quarter of the length {length}, got {pairs}")
    if not 2 * (pairs + 1) <= symbols <= MOST_SYMBOLS:
        least = 2 * (pairs + 1)
        raise ValueError(f"symbols must be from {least} to {MOST_SYMBOLS} for {pairs} pairs, got {symbols}")


def draw(key: str, *, length: int, pairs: int, symbols: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One sequence, chosen by the key, as (tokens, targets), both (length,).

    Keys are from the first half of the symbols and values from the second.
    """
    source = generator(key)
    half = symbols // 2
    keys = source.permutation(half)[:pairs]
    values = half + source.integers(symbols - half, size=pairs)
    tokens, targets = np.empty(length, dtype=np.int64), np.full(length, IGNORED, dtype=np.int64)
    tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
    free = np.ones(symbols, dtype=bool)
    free[keys] = False
    others = np.flatnonzero(free)
    tokens[2 * pairs :] = others[source.integers(len(others), size=length - 2 * pairs)]
    room = length - 2 * pairs
    chances = np.arange(1, room + 1) ** (POWER - 1)
    places = 2 * pairs + source.choice(room, size=pairs, replace=False, p=chances / chances.sum())
    tokens[places], targets[places] = keys, values
    return tokens, targets


def generator(key: str) -> np.random.Generator:
    """Random numbers that depend only on the key."""
    return np.random.Generator(np.random.PCG64(list(key.encode())))
