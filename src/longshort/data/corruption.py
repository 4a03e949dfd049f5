"""Replaces a share of a text's tokens at random, to imitate a noisy corpus.

Whether a token is replaced, and by what, depends only on the seed and its position in the file. So a corpus is
corrupted once, as a real one is: every epoch, window and rank sees the same wrong tokens.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from longshort.data.permutation import mixed


class Corruption:
    """Replaces tokens by ones drawn uniformly from the vocabulary.

    End-of-document tokens are neither replaced nor drawn. A drawn token equals the one it replaces with probability
    1 / (vocab_size - 1).

    >>> half = Corruption(0.5, vocab_size=100, kept=99, seed=0)
    >>> row = half(np.full(1000, 7), start=0)
    >>> bool(450 < (row != 7).sum() < 550), bool((half(np.full(10, 7), start=100) == row[100:110]).all())
    (True, True)

    Args:
        share: Share of the tokens that are replaced, from 0 to 1.
        kept: The token that is neither replaced nor drawn.
    """

    def __init__(self, share: float, *, vocab_size: int, kept: int, seed: int) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be from 0 to 1, got {share}")
        if share and vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2 where tokens are replaced, got {vocab_size}")
        self.share, self.vocab_size, self.kept = share, vocab_size, kept
        digest = hashlib.blake2b(f"corruption/{seed}".encode(), digest_size=16).digest()
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, tokens: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        """The tokens at positions `start`, `start` + 1, ... of the file, corrupted."""
        if not self.share:
            return tokens
        places = np.arange(start, start + len(tokens), dtype=np.uint64)
        chance, choice = (mixed(mixed(places + key)) for key in self._keys)
        replaced = (chance >> np.uint64(11)).astype(np.float64) < self.share * 2.0**53
        drawn = (choice % np.uint64(self.vocab_size - 1)).astype(np.int64)
        drawn += drawn >= self.kept  # leaves the kept token out
        return np.where(replaced & (tokens != self.kept), drawn, tokens)
