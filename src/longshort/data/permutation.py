"""A shuffled order of n items that is computed, not stored: any item of it in constant time and memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6


class Permutation:
    """A bijection of 0 .. size-1, chosen by a key.

    A Feistel network shuffles 0 .. 4^k-1, the smallest such range with at least `size` numbers (at most four times as
    many); a number that lands outside 0 .. size-1 is sent through again until it is inside, so the map stays bijective.

    >>> sorted(Permutation(5, "any key")(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, key: str) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The items at these places, each in 0 .. size-1."""
        values = places.astype(np.uint64)
        outside = np.ones(values.shape, dtype=bool)
        while outside.any():
            values[outside] = self._shuffled(values[outside])
            outside = values >= self.size
        return values.astype(np.int64)

    def _shuffled(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        shift = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> shift, values & mask
        for key in self._keys:
            left, right = right, left ^ (mixed(right + key) & mask)
        return left << shift | right


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): every input bit affects every output bit."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
