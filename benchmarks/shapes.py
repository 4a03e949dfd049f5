"""The problems that attention is measured at: one global head, the rest local, up to 32,768 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longshort.heads import HeadPlan


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A problem: all heads of LS-attention with one global head."""

    batch: int
    heads: int
    length: int
    head_dim: int
    window: int

    def __str__(self) -> str:
        return f"B{self.batch} H{self.heads} T{self.length} D{self.head_dim} w{self.window}"

    def plan(self, work: str) -> HeadPlan:
        """The heads of one kind of work.

        `full`: causal attention with all heads global, as in a model without LS-attention; `ls`: one global head, the
        rest local; `local` and `global`: those local heads, or that global head, alone.
        """
        if work == "full":
            return HeadPlan.full(self.heads)
        plan = HeadPlan.long_short(n_heads=self.heads, n_global=1, window=self.window)
        return {"ls": plan, "local": plan[1:], "global": plan[:1]}[work]


CPU_SHAPES = (
    Shape(batch=4, heads=6, length=2048, head_dim=32, window=50),
    Shape(batch=1, heads=6, length=8192, head_dim=32, window=100),
    Shape(batch=1, heads=12, length=2048, head_dim=64, window=128),
    Shape(batch=1, heads=12, length=8192, head_dim=64, window=128),
)

GPU_SHAPES = (
    Shape(batch=32, heads=6, length=2048, head_dim=32, window=50),
    Shape(batch=8, heads=6, length=8192, head_dim=32, window=100),
    Shape(batch=8, heads=12, length=2048, head_dim=64, window=128),
    Shape(batch=2, heads=12, length=8192, head_dim=64, window=128),
    Shape(batch=1, heads=12, length=32768, head_dim=64, window=128),
    Shape(batch=1, heads=32, length=8192, head_dim=128, window=128),
    Shape(batch=1, heads=32, length=32768, head_dim=128, window=128),
)

LARGE_BATCHES = (
    Shape(batch=32, heads=12, length=32768, head_dim=64, window=128),
    Shape(batch=16, heads=32, length=8192, head_dim=128, window=128),
)
"""Shapes of decoding that are only for its table of tiles: the goals are for the seven above."""

SHAPES = {"cpu": CPU_SHAPES, "cuda": GPU_SHAPES}


def chosen(shapes: Sequence[Shape], numbers: str | None) -> tuple[Shape, ...]:
    """The shapes with these numbers, counted from 0 and separated by commas; all if None.

    >>> [str(shape) for shape in chosen(CPU_SHAPES, "1")]
    ['B1 H6 T8192 D32 w100']
    """
    if numbers is None:
        return tuple(shapes)
    try:
        picked = [int(number) for number in numbers.split(",")]
    except ValueError:
        picked = [-1]
    if not all(0 <= number < len(shapes) for number in picked):
        raise ValueError(f"shapes must be numbers from 0 to {len(shapes) - 1}, separated by commas, got {numbers!r}")
    return tuple(shapes[number] for number in picked)
