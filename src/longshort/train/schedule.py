"""The learning rate of a step."""

from __future__ import annotations

import math

from longshort.train.settings.config import ScheduleConfig


def learning_rate(step: int, *, peak: float, steps: int, schedule: ScheduleConfig) -> float:
    """Learning rate of optimizer step `step` of `steps`, counted from 0.

    >>> wsd = ScheduleConfig(kind="wsd", warmup=10, decay=0.5, floor=0.0)
    >>> [round(learning_rate(s, peak=1.0, steps=100, schedule=wsd), 2) for s in (0, 9, 49, 75, 99)]
    [0.1, 1.0, 1.0, 0.48, 0.0]
    """
    if step < schedule.warmup:
        return peak * (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return peak
    if schedule.kind == "cosine":
        progress = (step - schedule.warmup) / max(1, steps - 1 - schedule.warmup)
        weight = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        decay = max(1, round(schedule.decay * steps))
        weight = min(1.0, (steps - 1 - step) / decay)
    return peak * (schedule.floor + (1 - schedule.floor) * weight)
