"""Far and near heads of a layer: those that see whole sequences, and those that see a window."""

from __future__ import annotations

from typing import NamedTuple

from longshort.heads import HeadPlan


class Reaches(NamedTuple):
    """Heads of a layer by what they see of sequences of one length."""

    far: int
    """Query heads that see everything before them."""
    near: tuple[int, ...]
    """Keys that each other query head sees."""
    far_kv: int
    """KV heads that some far query head reads."""
    near_kv: tuple[int, ...]
    """Keys that the others are read for."""


def reaches(plan: HeadPlan, kv_heads: int, length: int) -> Reaches:
    """The heads of a plan.

    >>> reaches(HeadPlan.long_short(4, 1, 16), 4, 1024)
    Reaches(far=1, near=(16, 16, 16), far_kv=1, near_kv=(16, 16, 16))
    """
    seen = [None if w is None or w + f >= length else w + f for w, f in zip(plan.windows, plan.first_keys, strict=True)]
    kept = [None if w is None or w >= length else w for w in plan.kv_windows(kv_heads)]
    near, near_kv = (tuple(x for x in each if x is not None) for each in (seen, kept))
    return Reaches(len(seen) - len(near), near, len(kept) - len(near_kv), near_kv)
