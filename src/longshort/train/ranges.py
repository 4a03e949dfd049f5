"""The range of every number of a configuration that is not the model's: one table, held before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from longshort.train.values import ConfigError

LARGEST_COUNT = 2**63 - 1
LARGEST_NUMBER = 1e38
"""Kernels compute in fp32, which holds it and its inverse."""


class Range(NamedTuple):
    """What a number must be, in words and as a test that NaN fails."""

    words: str
    holds: Callable[[Any], bool]


def _count(least: int) -> Range:
    return Range(f"an integer from {least} to 2^63 - 1", lambda value: least <= value <= LARGEST_COUNT)


_POSITIVE = Range(
    f"a number from {1 / LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}",
    lambda value: 1 / LARGEST_NUMBER <= value <= LARGEST_NUMBER,
)
_SHARE = Range("a number from 0 to 1", lambda value: 0 <= value <= 1)
_SEED = Range("an integer of 64 bits, from -2^63 to 2^63 - 1", lambda value: -(2**63) <= value < 2**63)

RANGES: dict[str, Range] = {
    "data.length": _count(1),
    "data.batch_size": _count(1),
    "data.corruption": _SHARE,
    "optimizer.lr": _POSITIVE,
    "optimizer.betas": Range("two numbers from 0 up to, not including, 1", lambda both: all(0 <= b < 1 for b in both)),
    "optimizer.eps": _POSITIVE,
    "optimizer.weight_decay": Range(
        f"a number from 0 to {LARGEST_NUMBER:g}", lambda value: 0 <= value <= LARGEST_NUMBER
    ),
    "schedule.warmup": _count(0),
    "schedule.floor": _SHARE,
    "schedule.decay": _SHARE,
    "run.steps": _count(1),
    "run.seed": _SEED,
    "run.accumulate": _count(1),
    "run.eval_every": _count(0),
    "run.eval_batches": _count(1),
    "run.save_every": _count(0),
    "run.keep": _count(1),
    "telemetry.logits_every": _count(0),
    "telemetry.entropy_every": _count(0),
    "stability.guard_threshold": _POSITIVE,
    "stability.guard_window": _count(2),
    "stability.guard_warmup": _count(2),
    "stability.guard_cap": _count(1),
    "stability.guard_cooldown": _count(0),
    "stability.nonfinite_cap": _count(0),
    "stability.clip_norm": _POSITIVE,
    "stability.qk_clip": _POSITIVE,
    "task.length": _count(1),
    "task.seed": _SEED,
    "task.train": _count(1),
    "task.validation": _count(1),
    "task.test": _count(1),
    "task.paddles": _count(1),
    "task.pairs": _count(1),
    "task.symbols": _count(1),
    "task.digits": _count(1),
}


def check_range(key: str, value: Any) -> None:
    """Raise where the value of `section.key` is out of its range; None, where a key takes it, is in it."""
    right = RANGES[key]
    if value is not None and not right.holds(value):
        raise ConfigError(f"{key} must be {right.words}, got {value!r}")
