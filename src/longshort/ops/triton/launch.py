"""From tensors to kernel launches: which heads go together, grids, and the arguments that all kernels share.

What depends on layouts and options alone is prepared once (`_forward_launches`, `_backward_launches`); a call allocates
its results and launches.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longshort.ops.documents import documents
from longshort.ops.options import Options
from longshort.ops.padding import dense_rows, ordered_like, without_padding
from longshort.ops.triton import segment_ranges, tiles
from longshort.ops.triton.backward_kernels import add_parts_kernel, grad_kv_kernel, grad_q_kernel, grad_sinks_kernel
from longshort.ops.triton.device import capability, precision_of, processors, table, width_of
from longshort.ops.triton.forward_kernel import forward_kernel, join_parts_kernel, reduce_extremes_kernel
from longshort.ops.triton.prepared import Launch, Layout, layout_of
from longshort.ops.triton.scores import FADES
from longshort.ops.triton.tiles import LONG, TileShape, parts_for, tile_shape

_PAD = 128
"""No tile has more rows; the numbers that rows pass between kernels are padded by as many as a tile may read."""
_ROWS = 2048
"""Rows of which a program sums the gradient of a sink."""
_PREPARED = 1024
"""Most calls, different in layouts or options, that are kept prepared."""


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    segments: Tensor | None,
    extremes: int,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Implements longshort::triton_forward."""
    out, lse = ordered_like(q), _numbers(*q.shape[:3], device=q.device)
    high, low = (_numbers(q.shape[1], device=q.device) if extremes > i else None for i in range(2))
    if out.numel() == 0:
        for numbers, nothing in ((high, -torch.inf), (low, torch.inf)):
            if numbers is not None:
                numbers.fill_(nothing)
        return out, lse, high, low
    q, k, v = (_addressable(x) for x in without_padding(segments, q, k, v))
    ids = () if segments is None else (segments.to(torch.int64).contiguous(),)
    sunk = sinks is not None
    layout, written = layout_of(q, k, v, *ids), out.stride()
    ready = _forward_launches(layout, written, options, precision_of(q), extremes, sunk, tiles.given())
    cut, held = ready.cut, lse if sinks is None else _aligned(sinks)
    # What a launch does not use, another tensor stands in for.
    found = _numbers(extremes, *q.shape[:2], cut.tiles, device=q.device) if extremes else lse
    partial, numbers = _partial(cut, q, lse), lse
    if ready.join is not None:
        numbers = _numbers(2 + extremes, cut.slots, cut.parts, q.shape[2], device=q.device)
    ready.walk(q, k, v, out, lse, found, partial, numbers, cut.heads, *_tables(ready, ids), held)
    if ready.join is not None:
        ready.join(out, lse, found, partial, numbers, cut.heads, held)
    if ready.reduce is not None and high is not None:
        ready.reduce(found, high, high if low is None else low)
    return out, lse, high, low


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    segments: Tensor | None,
    sinks: Tensor | None = None,
    into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Implements longshort::triton_backward. The gradients of q, k and v are written to `into`, if given; those
    of k and v have the same strides."""
    grad_q, grad_k, grad_v = (ordered_like(x) for x in (q, k, k)) if into is None else into
    grad_sinks = None
    if grad.numel() == 0:
        return grad_q.zero_(), grad_k.zero_(), grad_v.zero_(), None if sinks is None else torch.zeros_like(sinks)
    q, k, v = (_addressable(x) for x in without_padding(segments, q, k, v))
    grad = _addressable(dense_rows(grad))
    ids: tuple[Tensor, ...] = ()
    if segments is not None:
        grad = grad.masked_fill((segments[:, k.shape[2] - q.shape[2] :] < 0)[:, None, :, None], 0)
        ids = (segments.to(torch.int64).contiguous(),)
    layout, written = layout_of(grad, q, k, v, out, lse, *ids), (grad_q.stride(), grad_k.stride())
    ready = _backward_launches(layout, written, options, precision_of(q), tiles.given())
    tables = _tables(ready, ids)
    numbers = _numbers(2, *ready.padded, device=q.device)
    partial = _partial(ready.q_cut, q, lse)
    ready.q_walk(grad, q, k, v, out, lse, numbers, grad_q, partial, ready.q_cut.heads, *tables)
    if ready.q_sum is not None:
        ready.q_sum(partial, grad_q, ready.q_cut.heads)
    partial_k, partial_v = _partial(ready.kv_cut, k, lse), _partial(ready.kv_cut, v, lse)
    ready.kv_walk(
        *(grad, q, k, v, *numbers.unbind(), grad_k, grad_v, partial_k, partial_v, ready.kv_cut.heads, *tables)
    )
    if ready.k_sum is not None and ready.v_sum is not None:
        ready.k_sum(partial_k, grad_k, ready.kv_cut.heads)
        ready.v_sum(partial_v, grad_v, ready.kv_cut.heads)
    if sinks is not None:
        by_rows = _numbers(*ready.sums, device=q.device)
        ready.sinks(*numbers.unbind(), _aligned(sinks), by_rows)
        grad_sinks = by_rows.sum(1)
    return grad_q, grad_k, grad_v, grad_sinks


def _aligned(sinks: Tensor) -> Tensor:
    """As a prepared launch needs it."""
    sinks = sinks.contiguous()
    return sinks if sinks.data_ptr() % 16 == 0 else sinks.clone()


def _partial(cut: _Cut, like: Tensor, unused: Tensor) -> Tensor:
    """Room for the sums of the parts of walks."""
    if cut.parts == 1:
        return unused
    return _numbers(cut.slots, cut.parts, like.shape[2], width_of(like.shape[3]), device=like.device)


def _numbers(*shape: int, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=device)


class _Forward(NamedTuple):
    """The launches of a forward call."""

    walk: Launch
    join: Launch | None
    """Joins the parts of long walks, if they are cut."""
    reduce: Launch | None
    """Reduces the extremes of the logits, if asked for."""
    cut: _Cut
    tables: tuple[Tensor, ...]
    skip: bool
    first: int
    """The most first keys that a head sees."""


@lru_cache(maxsize=_PREPARED)
def _forward_launches(
    layout: Layout,
    written: tuple[int, ...],
    options: Options,
    precision: str,
    extremes: int,
    sunk: bool,
    given: tiles.Given,
) -> _Forward:
    """`written` are the strides of the output."""
    call = _Call.of(layout, options, precision, first=0)
    batch, n_heads, n_queries, _ = call.q_shape
    shape = tile_shape("forward", layout[1], call.head_dim, options.windows, n_queries, call.device)
    if extremes == 2 or (extremes and not call.flags["FOLD"]):
        shape = shape._replace(registers=None)  # a second extreme per row, besides the softmax's, needs a few more
    cut = call.cut(shape, 1, n_queries, shape.rows, call.n_keys, shape.columns)
    walk = Launch(
        forward_kernel,
        cut.grid,
        (*call.strides, *written[:3], *call.scalars, cut.n_long, cut.parts),
        {
            **{"STATS": extremes, "SINKS": sunk, "TMA": call.tma, "SPLIT": cut.parts > 1},
            **call.flags,
            **_tiling(shape),
        },
        rows=(shape.rows, shape.columns, shape.columns) if call.tma else (),
        again=call.aligned,
    )
    join = reduce = None
    if cut.parts > 1:
        join = Launch(
            join_parts_kernel,
            (cut.tiles, batch * cut.n_long, 1),
            (*written[:3], call.scalars[0], batch, n_heads, n_queries, cut.n_long, cut.parts),
            {
                **{name: call.flags[name] for name in ("D", "WIDTH", "FOLD")},
                **{"STATS": extremes, "SINKS": sunk, "M": shape.rows, "num_warps": 4},
            },
        )
    if extremes:
        sizes = (batch, n_heads, cut.tiles)
        flags = {"STATS": extremes, "BLOCK": 1024, "num_warps": 4}
        reduce = Launch(reduce_extremes_kernel, (n_heads, 1, 1), sizes, flags)
    return _Forward(walk, join, reduce, cut, call.tables, call.flags["SKIP"], max(options.firsts or (0,)))


class _Backward(NamedTuple):
    """The launches of a backward call: query gradients and the two numbers per row that the others read, then key and
    value gradients; the sums over the parts of long walks, if they are cut; and the gradients of sinks."""

    q_walk: Launch
    q_sum: Launch | None
    kv_walk: Launch
    k_sum: Launch | None
    v_sum: Launch | None
    sinks: Launch
    sums: tuple[int, int]
    """Shape of the gradients of sinks before they are summed over rows."""
    q_cut: _Cut
    kv_cut: _Cut
    padded: tuple[int, int, int]
    """Shape of each of the numbers."""
    tables: tuple[Tensor, ...]
    skip: bool
    first: int
    """The most first keys that a head sees."""


@lru_cache(maxsize=_PREPARED)
def _backward_launches(
    layout: Layout, written: tuple[tuple[int, ...], ...], options: Options, precision: str, given: tiles.Given
) -> _Backward:
    """`written` are the strides of the gradients of q, and of k and v."""
    call = _Call.of(layout, options, precision, first=1)
    # In two-sided attention its registers cost more than it saves (benchmarks/results/las-h200.json).
    call.flags["FADE"] &= options.causal
    (batch, n_heads, n_queries, head_dim), n_keys = call.q_shape, call.n_keys
    padded = _tiles_in(n_queries + _PAD - 1, _PAD) * _PAD
    grad, out = layout[0][0][1], layout[0][4][1]
    chosen = (layout[1], head_dim, options.windows, n_queries, call.device)

    shape = tile_shape("grad_q", *chosen)
    q_cut = call.cut(shape, 1, n_queries, shape.rows, n_keys, shape.columns)
    q_walk = Launch(
        grad_q_kernel,
        q_cut.grid,
        (*grad[:3], *call.strides, *out[:3], *written[0][:3], *call.scalars, q_cut.n_long, q_cut.parts, padded),
        {"TMA": call.tma, "SPLIT": q_cut.parts > 1, "PAD": _PAD, **call.flags, **_tiling(shape)},
        rows=(shape.rows, shape.rows, shape.columns, shape.columns) if call.tma else (),
        again=call.aligned,
    )

    shape = tile_shape("grad_kv", *chosen)
    kv_cut = call.cut(shape, call.flags["GROUP"], n_keys, shape.columns, n_queries, shape.rows)
    rows = (shape.rows, shape.rows, shape.columns, shape.columns, shape.rows, shape.rows)
    kv_walk = Launch(
        grad_kv_kernel,
        kv_cut.grid,
        (*grad[:3], *call.strides, *written[1][:3], *call.scalars, kv_cut.n_long, kv_cut.parts, padded),
        {"TMA": call.tma, "SPLIT": kv_cut.parts > 1, **call.flags, **_tiling(shape)},
        rows=rows if call.tma else (),
        again=call.aligned,
    )
    scale = call.scalars[0]
    return _Backward(
        q_walk,
        _sum_of_parts(q_cut, n_queries, head_dim, written[0], scale),
        kv_walk,
        _sum_of_parts(kv_cut, n_keys, head_dim, written[1], scale),
        _sum_of_parts(kv_cut, n_keys, head_dim, written[1], 1.0),
        Launch(
            grad_sinks_kernel,
            (n_heads, _tiles_in(n_queries, _ROWS), batch),
            (n_heads, n_queries, padded),
            {"BLOCK": _ROWS, "num_warps": 4},
        ),
        (n_heads, batch * _tiles_in(n_queries, _ROWS)),
        q_cut,
        kv_cut,
        (batch, n_heads, padded),
        call.tables,
        call.flags["SKIP"],
        max(options.firsts or (0,)),
    )


def _sum_of_parts(cut: _Cut, length: int, head_dim: int, strides: tuple[int, ...], factor: float) -> Launch | None:
    """For gradients with these strides, times a factor."""
    if cut.parts == 1:
        return None
    return Launch(
        add_parts_kernel,
        (_tiles_in(length, 32), cut.slots, 1),
        (*strides[:3], factor, cut.n_long, cut.parts, length),
        {"D": head_dim, "WIDTH": width_of(head_dim), "ROWS": 32, "num_warps": 4},
    )


class _Cut(NamedTuple):
    """How a launch divides its work."""

    heads: Tensor
    """Heads of the side that owns tiles, the long ones first."""
    n_long: int
    tiles: int
    """Tiles that each head owns."""
    parts: int
    """Parts of the walk of a long head."""
    slots: int
    """Long heads of all sequences whose walks are cut; 0 if none is cut."""
    grid: tuple[int, int, int]
    """Sequences, tiles, heads; each part of a long head counts as a head."""


class _Call(NamedTuple):
    """What the kernels of a call share, in the order of their arguments."""

    q_shape: tuple[int, ...]
    n_keys: int
    device: torch.device
    windows: tuple[int, ...]
    """One for each query head."""
    strides: tuple[int, ...]
    """Of q, k and v, three each."""
    tables: tuple[Tensor, ...]
    """Windows, decays, slopes and first keys; another table stands in for one that is not used."""
    scalars: tuple[float, ...]
    flags: dict[str, Any]
    aligned: bool
    tma: bool

    @classmethod
    def of(cls, layout: Layout, options: Options, precision: str, *, first: int) -> _Call:
        """From the layout of a call's tensors: q, k and v are those from `first` on, and segments the last, if any."""
        tensors, dtype, device, aligned = layout
        (q_shape, q), (k_shape, k), (_, v) = tensors[first : first + 3]
        segments = len(tensors) > (6 if first else 3)
        batch, n_heads, n_queries, head_dim = q_shape
        n_keys, softcap = k_shape[2], options.softcap
        scale = head_dim**-0.5 if options.scale is None else options.scale
        reach = table(options.windows, torch.int32, device)
        rates = [
            table(rate, torch.float32, device) if rate is not None and any(rate) else None
            for rate in (options.decays, options.slopes)
        ]
        firsts = None if options.firsts is None else table(options.firsts, torch.int32, device)
        linear = scale > 0 and softcap is None and rates[1] is None
        flags = {
            **{"GROUP": n_heads // k_shape[1], "D": head_dim, "WIDTH": width_of(head_dim)},
            **{"CAUSAL": options.causal, "DECAY": rates[0] is not None, "SLOPE": rates[1] is not None},
            **{"SOFTCAP": softcap is not None, "SEGMENTS": segments, "FIRST": options.firsts is not None},
            "SKIP": segments and n_keys > segment_ranges.SHORT.value and max(options.windows) >= LONG,
            "FOLD": linear and rates[0] is None,
            "FADE": linear and 0 < max(options.decays or [0.0]) <= FADES and (options.causal or options.firsts is None),
            "PRECISION": precision,
        }
        return cls(
            q_shape=q_shape,
            n_keys=n_keys,
            device=device,
            windows=options.windows,
            strides=(*q[:3], *k[:3], *v[:3]),
            tables=(reach, *(reach if each is None else each for each in (*rates, firsts))),
            scalars=(scale, 1.0 if softcap is None else softcap, batch, n_heads, n_queries, n_keys),
            flags=flags,
            aligned=aligned,
            tma=aligned and _descriptors_serve([strides for _, strides in tensors[: first + 3]], dtype, device),
        )

    def cut(self, shape: TileShape, group: int, owned: int, own: int, passed: int, other: int) -> _Cut:
        """`owned` positions in tiles of `own`, each walking over `passed` positions in tiles of `other`."""
        batch, by_reach = self.q_shape[0], _by_reach(self.windows, group, self.device)
        count, steps = _tiles_in(owned, own), _tiles_in(passed, other)
        parts = 1
        if by_reach.n_long:
            sizes = {"batch": batch, "tiles": count, "steps": steps, "other": other, "head_dim": self.flags["D"]}
            parts = shape.parts or parts_for(
                by_reach.reach, **sizes, causal=self.flags["CAUSAL"], processors=processors(self.device)
            )
        grid = (batch, count, len(by_reach.reach) + (parts - 1) * by_reach.n_long)
        return _Cut(by_reach.heads, by_reach.n_long, count, parts, batch * by_reach.n_long * (parts > 1), grid)

    @property
    def head_dim(self) -> int:
        return self.q_shape[3]


def _tables(ready: _Forward | _Backward, ids: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tables of a call, those of its segments included."""
    *by_head, firsts = ready.tables
    if not ids:
        return (*by_head, firsts, firsts, firsts, firsts)
    ranges = _ranges(ids[0]) if ready.skip else ids[0]
    return (*by_head, *ids, ranges, firsts, _places(ids[0], ready.first) if ready.first else firsts)


def _tiling(shape: TileShape) -> dict[str, Any]:
    return {
        **{"M": shape.rows, "N": shape.columns, "STAGES": shape.stages},
        **{"num_warps": shape.warps, "maxnreg": shape.registers},
    }


def _descriptors_serve(strides: list[tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> bool:
    """The copy engine, which exists from Hopper on, needs strides in multiples of 16 bytes, as it does addresses."""
    if device.type == "cuda" and capability(device) < (9, 0):
        return False
    return all(s * dtype.itemsize % 16 == 0 for each in strides for s in each[:3])


def _addressable(x: Tensor) -> Tensor:
    """Kernels count in 32 bits within a tile, so a tensor whose positions are further apart than that is copied."""
    return x if x.stride(2) < 1 << 24 else x.contiguous()


def _tiles_in(length: int, size: int) -> int:
    return -(-length // size)


class _ByReach(NamedTuple):
    heads: Tensor
    """(H,) int32, the long heads first."""
    n_long: int
    reach: tuple[int, ...]
    """Window of each head."""


@cache  # a captured CUDA graph reads the table for as long as it lives
def _by_reach(windows: tuple[int, ...], group: int, device: torch.device) -> _ByReach:
    """For KV heads of `group` query heads each. The table stays on the device, so that a call copies nothing to it."""
    reach = [max(windows[i : i + group]) for i in range(0, len(windows), group)]
    heads = sorted(range(len(reach)), key=lambda head: reach[head] < LONG)
    on_device = torch.tensor(heads, dtype=torch.int32, device=device)
    return _ByReach(on_device, sum(w >= LONG for w in reach), tuple(reach))


def _places(segments: Tensor, first: int) -> Tensor:
    """(4, B, S) int32: the fields of `documents`."""
    return torch.stack(documents(segments, first)).to(torch.int32)


def _ranges(segments: Tensor) -> Tensor:
    """(B, blocks, 2): the lowest and highest segment of each block of positions."""
    (batch, length), per_program = segments.shape, 16
    blocks = _tiles_in(length, segment_ranges.BLOCK.value)
    ranges = segments.new_empty(batch, blocks, 2)
    segment_ranges.segment_ranges_kernel[(batch, _tiles_in(blocks, per_program))](
        segments, ranges, length, blocks, BLOCKS=per_program, num_warps=4
    )
    return ranges
