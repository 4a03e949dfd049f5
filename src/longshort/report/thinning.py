"""Make long curves small and keep what matters in them: extremes, and values that are not finite."""

from __future__ import annotations

import numpy as np

KEPT_PER_BUCKET = 3  # lowest, highest, first that is not finite


def thin(values: np.ndarray, limit: int) -> np.ndarray:
    """The indices, ascending, of at most `limit` of the `values` (N,).

    Both ends are kept and, of each bucket of neighbours, the lowest, the highest and the first that is not finite.

    >>> thin(np.array([1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0]), limit=5)
    array([0, 3, 8])
    """
    n = len(values)
    if n <= limit:
        return np.arange(n)
    if limit < KEPT_PER_BUCKET + 2:
        raise ValueError(f"limit must be at least {KEPT_PER_BUCKET + 2}, got {limit}")
    kept = {0, n - 1}
    for bucket in np.array_split(np.arange(n), (limit - 2) // KEPT_PER_BUCKET):
        finite = np.isfinite(values[bucket])
        if finite.any():
            kept.add(int(bucket[np.where(finite, values[bucket], np.inf).argmin()]))
            kept.add(int(bucket[np.where(finite, values[bucket], -np.inf).argmax()]))
        if not finite.all():
            kept.add(int(bucket[finite.argmin()]))
    return np.array(sorted(kept))


def blocks(n: int, limit: int) -> list[np.ndarray]:
    """The indices 0..n-1 in at most `limit` runs of neighbours of equal length, the last one perhaps shorter.

    >>> [block.tolist() for block in blocks(5, limit=3)]
    [[0, 1], [2, 3], [4]]
    """
    length = max(1, -(-n // limit))
    return [np.arange(start, min(start + length, n)) for start in range(0, n, length)]
