"""The window as a rule of thumb: the best one of each length and width, and a power law through them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Best(NamedTuple):
    """The window with the lowest loss."""

    window: float
    loss: float
    at_edge: bool
    """The lowest loss is that of the smallest or largest window tried: the best may lie beyond."""


class Rule(NamedTuple):
    """window = scale * n^by_length * d^by_width."""

    scale: float
    by_length: float
    by_width: float
    """0 where only one width was tried."""
    error: float
    """Root mean square of the error in log2 of the window."""
    points: int

    def __call__(self, length: float, width: float) -> float:
        return float(self.scale * length**self.by_length * width**self.by_width)


def best_window(losses: Mapping[int, float | None]) -> Best | None:
    """The lowest point of the parabola, in log window, through the lowest loss and its neighbours.

    >>> best_window({16: 3.2, 32: 3.0, 64: 3.2})
    Best(window=32.0, loss=3.0, at_edge=False)
    """
    finite = sorted((w, loss) for w, loss in losses.items() if loss is not None and math.isfinite(loss))
    if len(finite) < 3:
        return None
    lowest = min(range(len(finite)), key=lambda i: finite[i][1])
    if lowest in (0, len(finite) - 1):
        return Best(float(finite[lowest][0]), finite[lowest][1], True)
    (xa, a), (xb, b), (xc, c) = ((math.log2(w), loss) for w, loss in finite[lowest - 1 : lowest + 2])
    left, right = (xb - xa) * (b - c), (xb - xc) * (b - a)
    if left == right:  # three equal losses
        return Best(float(finite[lowest][0]), b, False)
    x = xb - 0.5 * ((xb - xa) * left - (xb - xc) * right) / (left - right)
    return Best(round(2.0**x, 6), b, False)


def fit_window(points: Sequence[tuple[float, float, float]]) -> Rule | None:
    """Least squares in logarithms through (length, width, window); None with fewer than two lengths.

    >>> rule = fit_window([(n, 192.0, 2 * n**0.5) for n in (512, 2048, 8192)])
    >>> round(rule.by_length, 6), round(rule(4096, 192.0), 3)
    (0.5, 128.0)
    """
    lengths, widths = {n for n, _, _ in points}, {d for _, d, _ in points}
    if len(lengths) < 2:
        return None
    logs = np.log2(np.array(points, dtype=np.float64))
    columns = [np.ones(len(points)), logs[:, 0]] + ([logs[:, 1]] if len(widths) > 1 else [])
    matrix = np.stack(columns, axis=1)
    solution, *_ = np.linalg.lstsq(matrix, logs[:, 2], rcond=None)
    residual = matrix @ solution - logs[:, 2]
    by_width = float(solution[2]) if len(solution) > 2 else 0.0
    error = float(np.sqrt(np.mean(residual**2)))
    return Rule(float(2.0 ** solution[0]), float(solution[1]), by_width, error, len(points))
