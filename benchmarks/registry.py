"""What is benchmarked: implementations of attention, and the shapes they are measured at.

An implementation does one kind of work: `full` causal attention over all heads, LS-attention (`ls`: one global head,
the rest local), or the `local` heads or the `global` head of that alone. Rows of one kind compute the same thing and
are checked to; `full` is what a model without LS-attention would pay. `gpu_peers` has the implementations for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.ops import attention

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


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
        """The heads that an implementation of this kind of work computes."""
        if work == "full":
            return HeadPlan.full(self.heads)
        plan = HeadPlan.long_short(n_heads=self.heads, n_global=1, window=self.window)
        return {"ls": plan, "local": plan[1:], "global": plan[:1]}[work]


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to do one kind of work."""

    name: str
    work: str
    """'full', 'ls', 'local' or 'global'."""
    build: Callable[[Shape], Attend]
    """Given the shape, masks and the like are made here, outside the timing."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run here, or None."""


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


def chosen(shapes: Sequence[Shape], numbers: str | None) -> tuple[Shape, ...]:
    """The shapes of these numbers, counted from 0 and separated by commas; all if None.

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


def ours(work: str, *, backend: str = "blocked", stats: bool = False) -> Callable[[Shape], Attend]:
    """The package's own op."""

    def build(shape: Shape) -> Attend:
        plan = shape.plan(work)
        return lambda q, k, v: attention(q, k, v, plan, stats=stats, backend=backend).out

    return build


def _sdpa(shape: Shape) -> Attend:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _sdpa_band_mask(shape: Shape) -> Attend:
    ones = torch.ones(shape.length, shape.length, dtype=torch.bool)
    mask = ones.tril().triu(1 - shape.window)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _local_attention(shape: Shape) -> Attend:
    from local_attention import LocalAttention

    # Its exact window reaches `window_size` keys before the current one, hence the minus one.
    layer = LocalAttention(
        window_size=shape.window - 1,
        causal=True,
        look_backward=1,
        look_forward=0,
        exact_windowsize=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    return lambda q, k, v: layer(q, k, v)


def _local_attention_missing() -> str | None:
    return None if find_spec("local_attention") else "pip install local-attention"


CPU_IMPLEMENTATIONS = (
    Implementation(name="sdpa causal", work="full", build=_sdpa),
    Implementation(name="longshort", work="ls", build=ours("ls")),
    Implementation(name="longshort", work="local", build=ours("local")),
    Implementation(name="sdpa band mask", work="local", build=_sdpa_band_mask),
    Implementation(name="local-attention", work="local", build=_local_attention, missing=_local_attention_missing),
)
