"""Decides whether a training loss is a spike. What to do about it is up to the trainer."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

_TO_SIGMA = 1.4826
"""Turns a median absolute deviation into a standard deviation, for normal noise."""


class Verdict(NamedTuple):
    """The guard's verdict on one step."""

    spike: bool
    reason: str
    threshold: float | None
    """The largest loss that would have passed; None while the guard has too little history."""


class SpikeGuard:
    """Judges a loss by the median and MAD of the accepted steps; a spike never enters the window it is judged by.

    A non-finite loss is always a spike. A level shift that persists is accepted after `cap` spikes in a row, so a guard
    can never hold up training for good.

    >>> guard = SpikeGuard(window=100, threshold=6.0, warmup=10)
    >>> for step in range(50):
    ...     _ = guard.judge(2.0 + 0.01 * (step % 5))
    >>> guard.judge(9.0).spike, guard.judge(float("nan")).spike, guard.judge(2.03).spike
    (True, True, False)
    """

    def __init__(self, *, window: int = 200, threshold: float = 8.0, warmup: int = 50, cap: int = 10) -> None:
        for name, value, least in (("window", window, 2), ("warmup", warmup, 2), ("cap", cap, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
        if warmup > window:
            raise ValueError(f"warmup must be at most window={window}, or it would never end, got {warmup}")
        if not threshold > 0:
            raise ValueError(f"threshold must be > 0, got {threshold!r}")
        self.threshold, self.warmup, self.cap = threshold, warmup, cap
        self.accepted: deque[float] = deque(maxlen=window)
        self.in_a_row = 0

    def judge(self, loss: float) -> Verdict:
        """Judge the loss of one step, and remember it if it passes."""
        limit = self._limit()
        if not math.isfinite(loss):
            self.in_a_row += 1
            return Verdict(True, f"the loss is {loss}", limit)
        if limit is not None and loss > limit and self.in_a_row < self.cap:
            self.in_a_row += 1
            return Verdict(True, f"the loss {loss:.4g} is above {limit:.4g}", limit)
        if limit is not None and loss > limit:
            self.accepted.clear()  # a new level: judge by it from now on
        self.in_a_row = 0
        self.accepted.append(loss)
        return Verdict(False, "", limit)

    def spikes(self, loss: Tensor) -> Tensor:
        """What `judge` will find of a loss (), as a tensor on its device: nothing is read from there or remembered."""
        limit = self._limit()
        bad = ~loss.isfinite()
        if limit is not None and self.in_a_row < self.cap:
            bad |= loss.double() > limit  # as the host compares
        return bad

    def _limit(self) -> float | None:
        if len(self.accepted) < self.warmup:
            return None
        middle = statistics.median(self.accepted)
        spread = _TO_SIGMA * statistics.median(abs(loss - middle) for loss in self.accepted)
        return middle + self.threshold * max(spread, 1e-3 * abs(middle))

    def state_dict(self) -> dict[str, Any]:
        """Everything that later verdicts depend on, ready for JSON."""
        return {"accepted": list(self.accepted), "in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.accepted = deque(state["accepted"], maxlen=self.accepted.maxlen)
        self.in_a_row = state["in_a_row"]
