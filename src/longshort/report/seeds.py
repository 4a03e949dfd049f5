"""The line of a variant: each run smoothed, then the mean, the lowest and the highest over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SMOOTHED = 0.05
"""A point of a smoothed line is the median over this share of a run."""
POINTS = 120
"""Points of a smoothed line."""


class SeedLine(NamedTuple):
    """Values over steps; NaN where some seed has no finite one."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def seed_line(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> SeedLine:
    """The smoothed mean of curves, each (steps, values), from where the last of them begins to where the first ends.

    >>> seed_line([(np.array([1, 2]), np.array([3.0, 5.0])), (np.array([1, 2, 3]), np.array([5.0, 7.0, 9.0]))]).mean
    array([4., 6.])
    """
    shared: list[int] = []
    if curves and all(len(steps) for steps, _ in curves):
        first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
        shared = [step for step in curves[0][0] if first <= step <= last]
    if not shared:
        return SeedLine(*(np.zeros(0) for _ in SeedLine._fields))
    grid = np.array([shared[i] for i in sorted({round(x) for x in np.linspace(0, len(shared) - 1, POINTS)})])
    values_RG = np.array([smoothed(values, np.searchsorted(steps, grid)) for steps, values in curves])
    return SeedLine(grid, values_RG.mean(axis=0), values_RG.min(axis=0), values_RG.max(axis=0))


def window(count: int) -> int:
    """How many of `count` values the median of one point is taken over.

    >>> window(10), window(800)
    (1, 41)
    """
    return 2 * int(SMOOTHED * count / 2) + 1


def smoothed(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Medians of the finite `values` around the indices `at`, over fewer at the start, where curves fall fast."""
    half = window(len(values)) // 2
    return np.array([_finite_median(values[i - min(half, i) : i + min(half, i) + 1]) for i in at])


def _finite_median(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else np.nan
