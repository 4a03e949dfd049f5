"""The problems that attention is measured at: one global head, the rest local, up to 32,768 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longshort.heads import HeadPlan


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A problem: all heads of LS-attention, with one global head unless it says otherwise."""

    batch: int
    heads: int
    length: int
    head_dim: int
    window: int
    n_global: int = 1
    kv_heads: int | None = None
    """As many as heads if None."""

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.kv_heads is None else f"{self.heads}/{self.kv_heads}"
        more = "" if self.n_global == 1 else f"g{self.n_global} "
        return f"B{self.batch} H{heads} T{self.length} D{self.head_dim} {more}w{self.window}"

    def plan(self, work: str) -> HeadPlan:
        """The heads of one kind of work.

        `full`: causal attention with all heads global, as in a model without LS-attention; `ls`: the global heads, the
        rest local; `local` and `global`: those local heads, or those global heads, alone.
        """
        if work == "full":
            return HeadPlan.full(self.heads)
        plan = HeadPlan.long_short(n_heads=self.heads, n_global=self.n_global, window=self.window)
        return {"ls": plan, "local": plan[self.n_global :], "global": plan[: self.n_global]}[work]


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

OTHER_SHAPES = (
    Shape(batch=16, heads=8, length=1024, head_dim=64, window=32, n_global=2),
    Shape(batch=8, heads=12, length=2048, head_dim=64, window=8),
    Shape(batch=4, heads=12, length=4096, head_dim=64, window=512, n_global=4),
    Shape(batch=2, heads=16, length=8192, head_dim=64, window=1024, n_global=8),
    Shape(batch=4, heads=8, length=4096, head_dim=96, window=128),
    Shape(batch=8, heads=12, length=3000, head_dim=64, window=128),
    Shape(batch=2, heads=32, kv_heads=8, length=4096, head_dim=128, window=128, n_global=4),
    Shape(batch=1, heads=32, kv_heads=8, length=16384, head_dim=128, window=1024, n_global=8),
    Shape(batch=1, heads=12, length=65536, head_dim=64, window=128),
)
"""Shapes that no tile was tuned for."""

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
