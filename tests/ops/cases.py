"""Whole calls of the op, drawn by hypothesis, and how results are compared.

A `Case` is plain data with a readable repr; its tensors are made from its seed, so that a failing case can be pasted
into a shell and rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from torch import Tensor

from longshort import HeadPlan
from longshort.ops import AttentionResult, Smoothing, attention
from longshort.ops.blocked import fused, groups, passes
from longshort.ops.options import Stats

LENGTHS = (1, 2, 3, 7, 16, 17, 33, 64, 65, 100, 129, 200, 257)
EXTRA_KEYS = (0, 0, 0, 1, 5, 16, 63, 130)
WINDOWS = (1, 2, 3, 5, 16, 17, 50, 64)
LAYOUTS = ("contiguous", "fused qkv", "positions first", "every other element")
SEGMENTS = ("sorted", "shuffled", "negatives", "left padding", "one row all padding", "all padding")
SCALES = (None, None, 0.3, -0.7, 1, 0.0)
HALF = (torch.bfloat16, torch.float16)
_GRADS = ("grad of q", "grad of k", "grad of v", "grad of sinks")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of the op."""

    batch: int = 2
    kv_heads: int = 1
    n_queries: int
    n_keys: int
    dim: int = 8
    plan: HeadPlan
    scale: float | None = None
    causal: bool = True
    softcap: float | None = None
    smoothing: Smoothing | None = None
    segments: str | None = None
    sinks: bool = False
    """With a sink for each head, whose gradient is compared too."""
    layout: str = "contiguous"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    tile_parts: int | None = None
    """If set, tiles are small and global heads cut into so many parts, so that short lengths meet every split."""
    poison: bool = False
    """Fill memory that is allocated and not written with NaN."""
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        names = ("scale", "causal", "softcap", "smoothing")
        return {name: getattr(self, name) for name in names} | {"segments": self.make_segments()}

    def make_segments(self) -> Tensor | None:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.batch, self.n_keys)
        match self.segments:
            case None:
                return None
            case "sorted":
                ids = torch.randint(0, 4, shape, generator=generator).sort(-1).values
            case "shuffled":
                ids = torch.randint(0, 3, shape, generator=generator, dtype=torch.int32)
            case "negatives":
                ids = torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8)
            case "left padding":
                pads = torch.randint(0, self.n_keys + 1, (self.batch, 1), generator=generator)
                ids = torch.where(torch.arange(self.n_keys) < pads, -1, 0)
            case "one row all padding":
                ids = torch.randint(0, 3, shape, generator=generator)
                ids[:1] = -7
            case "all padding":
                ids = torch.tensor(-1).expand(shape)
        return ids.to(self.device)

    def make_sinks(self, dtype: torch.dtype) -> Tensor | None:
        """A leaf, in the precision that goes with inputs of this dtype: fp32, or float64 for float64."""
        if not self.sinks:
            return None
        drawn = 2 * torch.randn(self.plan.n_heads, generator=torch.Generator().manual_seed(self.seed))
        return drawn.to(self.device, torch.promote_types(dtype, torch.float32)).requires_grad_()

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v as leaves with the strides of the layout, and a gradient for the output."""
        generator = torch.Generator().manual_seed(self.seed)
        heads, kv, dim = self.plan.n_heads, self.kv_heads, self.dim

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, self.dtype)

        past = self.n_keys - self.n_queries
        if self.layout == "fused qkv":
            rows = draw(self.batch, self.n_keys, (heads + 2 * kv) * dim).unflatten(-1, (-1, dim)).transpose(1, 2)
            q, k, v = rows[:, :heads, past:], rows[:, heads : heads + kv], rows[:, heads + kv :]
            grad = draw(self.batch, self.n_queries, heads, dim).transpose(1, 2)
        elif self.layout == "positions first":
            q = draw(self.n_queries, self.batch, heads, dim).permute(1, 2, 0, 3)
            k, v = (draw(self.n_keys, self.batch, kv, dim).permute(1, 2, 0, 3) for _ in range(2))
            grad = draw(1, heads, 1, dim).expand(q.shape)
        elif self.layout == "every other element":
            q = draw(self.batch, heads, self.n_queries, 2 * dim)[..., ::2]
            k, v = (draw(self.batch, kv, 2 * self.n_keys, dim)[:, :, ::2] for _ in range(2))
            grad = draw(self.batch, heads, dim, self.n_queries).mT
        else:
            q = draw(self.batch, heads, self.n_queries, dim)
            k, v = (draw(self.batch, kv, self.n_keys, dim) for _ in range(2))
            grad = draw(*q.shape)
        return q.detach().requires_grad_(), k.detach().requires_grad_(), v.detach().requires_grad_(), grad


@dataclass
class Outcome:
    """What a call gives: the result and the gradients of q, k, v and sinks, named for comparison."""

    result: AttentionResult
    grads: tuple[Tensor, ...]

    def named(self) -> Iterator[tuple[str, Tensor]]:
        yield "out", self.result.out
        yield "lse", self.result.lse
        if self.result.stats is not None:
            yield "stats.max", self.result.stats.max
            if self.result.stats.min is not None:
                yield "stats.min", self.result.stats.min
        yield from zip(_GRADS[: len(self.grads)], self.grads, strict=True)


def run(case: Case, backend: str, dtype: torch.dtype | None = None, stats: Stats = True) -> Outcome:
    """Forward with statistics and backward of the case; `dtype` takes the same numbers to another precision first."""
    q, k, v, grad = case.tensors()
    if dtype is not None:
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in (q, k, v))
    sinks = case.make_sinks(q.dtype)
    with _tiling(case):
        result = attention(q, k, v, case.plan, **case.options, sinks=sinks, stats=stats, backend=backend)
        leaves = [x for x in (q, k, v, sinks) if x is not None]
        grads = torch.autograd.grad(result.out, leaves, grad.to(result.out.dtype))
    return Outcome(result, grads)


def assert_statistics_change_no_bit(case: Case, backend: str) -> None:
    """Neither kind changes a bit of other results; "max" alone finds the same maxima, and no minima."""
    none, largest, both = (run(case, backend, stats=stats) for stats in (False, "max", True))
    assert none.result.stats is None
    assert largest.result.stats is not None and largest.result.stats.min is None
    assert [name for name, _ in both.named() if name not in dict(largest.named())] == ["stats.min"]
    for outcome in (none, largest):
        want = dict(both.named())
        assert [name for name, x in outcome.named() if not _same_bits(x, want[name])] == []


def _same_bits(x: Tensor, y: Tensor) -> bool:
    return x.dtype == y.dtype and torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(), y.nan_to_num())


def run_in_rounding(case: Case) -> Outcome:
    """The dense formula with every intermediate rounded to the dtype of the case: what half precision itself costs."""
    q, k, v, grad = case.tensors()

    def matmul(a: Tensor, b: Tensor) -> Tensor:
        return (a.float() @ b.float()).to(a.dtype)  # as fast kernels do, and faster than some CPUs in half precision

    group = case.plan.n_heads // case.kv_heads
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    positions = torch.arange(case.n_keys, device=q.device)
    offset = positions[case.n_keys - case.n_queries :, None] - positions
    scale = case.dim**-0.5 if case.scale is None else case.scale
    x = matmul(q, keys.mT) * scale
    rates = [torch.tensor(r, dtype=torch.float64, device=q.device)[:, None, None] if r else None
             for r in (case.plan.decays, case.plan.slopes)]  # fmt: skip
    if rates[0] is not None:
        x = x * (-rates[0] * offset.abs()).exp().to(q.dtype)
    if case.softcap is not None:
        x = case.softcap * (x / case.softcap).tanh()
    if rates[1] is not None:
        x = x - (rates[1] * offset.abs()).to(q.dtype)
    sees = torch.stack([offset.abs() < (w or case.n_keys) for w in case.plan.windows])
    if case.causal:
        sees = sees & (offset >= 0)
    segments = case.make_segments()
    if segments is not None:
        ours = segments[:, case.n_keys - case.n_queries :, None]
        sees = sees & ((ours == segments[:, None]) & (ours >= 0))[:, None]
    x, sinks, leaves = x.masked_fill(~sees, -torch.inf), case.make_sinks(q.dtype), [q, k, v]
    if sinks is not None:
        x = torch.cat((x, sinks.to(q.dtype)[:, None, None].expand(*x.shape[:3], 1)), -1)
        x = x.masked_fill(~sees.any(-1, keepdim=True), -torch.inf)
        leaves.append(sinks)
    out = matmul(x.softmax(-1)[..., : case.n_keys].masked_fill(~sees, 0), values)
    return Outcome(AttentionResult(out, x.logsumexp(-1), None), torch.autograd.grad(out, leaves, grad))


def assert_close(got: Outcome, want: Outcome, tolerance: float) -> None:
    """Each tensor within `tolerance` of its own magnitude (but at least 1), and equal infinities; no NaN passes."""
    for (name, a), (_, b) in zip(got.named(), want.named(), strict=True):
        finite = b[b.isfinite()].abs()
        size = max(1.0, finite.max().item()) if finite.numel() else 1.0
        torch.testing.assert_close(
            a.double(), b.double(), rtol=0, atol=tolerance * size, msg=lambda m, name=name: f"{name}: {m}"
        )


def assert_no_worse_than_rounding(got: Outcome, exact: Outcome, rounded: Outcome) -> None:
    """out and gradients: error at most twice that of the formula in the dtype's own rounding; one ulp is free."""
    exact_by_name, rounded_by_name = dict(exact.named()), dict(rounded.named())
    for name, value in got.named():
        if name not in ("out", *_GRADS) or value.numel() == 0:
            continue
        want = exact_by_name[name]
        error = (value.double() - want).abs().max().item()
        usual = (rounded_by_name[name].double() - want).abs().max().item()
        ulp = torch.finfo(got.result.out.dtype).eps * max(1.0, want.abs().max().item())
        assert error <= 2 * usual + ulp, f"{name}: error {error:.2e}, rounding alone {usual:.2e} + {ulp:.2e}"


@contextmanager
def _tiling(case: Case) -> Iterator[None]:
    with ExitStack() as stack:
        if case.tile_parts is not None:
            stack.enter_context(small_tiles(case.tile_parts))
        if case.poison:
            stack.enter_context(poisoned_memory())
        yield


@contextmanager
def small_tiles(parts: int) -> Iterator[None]:
    """Tiles, masks and buffers so small that a hundred positions already take many; global heads cut into `parts`."""
    budgets = {
        "_DENSE_ELEMENTS": {"cpu": 1 << 11, "cuda": 1 << 11},
        "_MASK_ELEMENTS": 1 << 10,
        "_SLAB_ELEMENTS": 1 << 8,
        "_SLOPED_SIDE": 32,
    }
    with (
        patch.object(fused, "head_parts", lambda q, causal: parts if q.shape[1] >= parts else 1),
        patch.object(passes, "_GRADIENT_BYTES", 1 << 10),
        patch.multiple(groups, **budgets),
    ):
        yield


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """torch.empty gives NaN, so that whatever is read before it is written shows."""
    torch.use_deterministic_algorithms(True)  # with it torch fills uninitialised memory by default
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@st.composite
def cases(draw: st.DrawFn, *, dtypes: tuple[torch.dtype, ...], **fixed: Any) -> Case:
    """Any call that the op must serve; `fixed` sets fields of the case."""
    n_queries = draw(st.sampled_from(LENGTHS))
    n_keys = n_queries + draw(st.sampled_from(EXTRA_KEYS))
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = kv_heads * group
    edges = {n_queries, n_keys - 1, n_keys, n_keys + 1} - {0}
    palette = draw(st.lists(st.sampled_from([None, None, *WINDOWS, *sorted(edges)]), min_size=1, max_size=3))

    def per_head(*entries: Any) -> tuple[Any, ...]:
        return tuple(draw(st.lists(st.sampled_from(entries), min_size=heads, max_size=heads)))

    plan = HeadPlan(
        windows=per_head(*palette),
        decays=per_head(0.0, 0.001, 0.1, 1.0) if draw(st.integers(0, 3)) == 0 else None,
        slopes=per_head(0.0, 0.01, 0.3, 2.0) if draw(st.integers(0, 2)) == 0 else None,
        firsts=per_head(0, 0, 1, 3, 20, 300) if draw(st.integers(0, 3)) == 0 else None,
    )
    fields = {
        "batch": draw(st.sampled_from([1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 0])),
        "dim": draw(st.sampled_from([1, 3, 8, 16, 32])),
        "scale": draw(st.sampled_from(SCALES)),
        "causal": draw(st.booleans()),
        "softcap": draw(st.sampled_from([None, None, None, 0.5, 20.0, 5])),
        "segments": draw(st.sampled_from([None] * len(SEGMENTS) + list(SEGMENTS))),
        "sinks": draw(st.integers(0, 2)) == 0,
        "layout": draw(st.sampled_from(LAYOUTS)),
        "dtype": draw(st.sampled_from(dtypes)),
        "tile_parts": draw(st.sampled_from([None, None, 1, 2, 4])),
        "poison": draw(st.booleans()),
        "seed": draw(st.integers(0, 999)),
    }
    return Case(kv_heads=kv_heads, n_queries=n_queries, n_keys=n_keys, plan=plan, **(fields | fixed))


def made_affordable(case: Case) -> Case:
    """The interpreter of the kernels takes its time for every pair of tiles: four heads at most, one long row."""
    group = case.plan.n_heads // case.kv_heads
    kv_heads = min(case.kv_heads, 4 // group)
    batch = min(case.batch, 2 if case.n_keys <= 100 else 1)
    return replace(case, plan=case.plan[: kv_heads * group], kv_heads=kv_heads, batch=batch, tile_parts=None)
