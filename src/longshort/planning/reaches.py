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


def reaches(plan: HeadPlan, length: int) -> Reaches:
    """The heads of a plan.

    >>> reaches(HeadPlan.long_short(4, 1, 16), 1024)
    Reaches(far=1, near=(16, 16, 16))
    """
    seen = [None if w is None or w + f >= length else w + f for w, f in zip(plan.windows, plan.first_keys, strict=True)]
    near = tuple(keys for keys in seen if keys is not None)
    return Reaches(len(seen) - len(near), near)
