"""What a head sees, as pages and pictures write it."""

from __future__ import annotations

from collections.abc import Sequence

from longshort.heads import HeadPlan

Sees = int | tuple[int, int] | None
"""What a head sees: a window, the first keys and a window, or everything (None)."""
Windows = Sequence[Sequence[Sees]]
"""What each head of each layer sees."""


def seen_by(plan: HeadPlan) -> tuple[Sees, ...]:
    """What each head of a plan sees."""
    return tuple((f, w) if f and w is not None else w for w, f in zip(plan.windows, plan.first_keys, strict=True))


def label(sees: Sees) -> str:
    """
    >>> [label(sees) for sees in (None, 16, (4, 8))]
    ['all', '16', '4 + 8']
    """
    return "all" if sees is None else str(sees) if isinstance(sees, int) else f"{sees[0]} + {sees[1]}"
