"""From tensors to kernel launches: which heads go together, grids, and the arguments that all kernels share."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from longshort.ops.options import Options
from longshort.ops.padding import dense_rows, without_padding
from longshort.ops.triton import segment_ranges
from longshort.ops.triton.backward_kernels import add_parts_kernel, grad_kv_kernel, grad_q_kernel
from longshort.ops.triton.device import capability, precision_of, processors, table, width_of
from longshort.ops.triton.forward_kernel import forward_kernel, join_parts_kernel, reduce_extremes_kernel
from longshort.ops.triton.scores import FADES
from longshort.ops.triton.tiles import LONG, TileShape, parts_for, tile_shape

_PAD = 128
"""No tile has more rows; the numbers that rows pass between kernels are padded by as many as a tile may read."""


def forward(
    q: Tensor, k: Tensor, v: Tensor, options: Options, segments: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Implements longshort::triton_forward."""
    batch, n_heads, n_queries, head_dim = q.shape
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)
    high, low = (q.new_empty(n_heads if stats else 0, dtype=torch.float32) for _ in range(2))
    if out.numel() == 0:
        return out, lse, high.fill_(-torch.inf), low.fill_(torch.inf)
    q, k, v = (_addressable(x) for x in without_padding(segments, q, k, v))
    given = _arguments(q, k, options, segments)
    shape = tile_shape("forward", q, given.windows)
    if stats:
        shape = shape._replace(registers=None)  # statistics need a few more
    cut = _cut(shape, given, 1, batch, n_queries, shape.rows, k.shape[2], shape.columns, q.device)
    extremes = q.new_empty((2, batch, n_heads, cut.tiles) if stats else (0,), dtype=torch.float32)
    partial = q.new_empty((cut.slots, cut.parts, n_queries, width_of(head_dim)), dtype=torch.float32)
    numbers = q.new_empty((4, cut.slots, cut.parts, n_queries), dtype=torch.float32)
    tma = _descriptors_serve(q, k, v)
    forward_kernel[cut.grid](
        *_tiled((q, k, v), (shape.rows, shape.columns, shape.columns), tma),
        *(out, lse, extremes, partial, numbers, cut.heads, *given.tables),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *given.scalars, cut.n_long, cut.parts),
        **{"STATS": stats, "TMA": tma, "SPLIT": cut.parts > 1, **given.flags, **_tiling(shape)},
    )
    if cut.parts > 1:
        join_parts_kernel[(cut.tiles, batch * cut.n_long)](
            *(out, lse, extremes, partial, numbers, cut.heads, *out.stride()[:3], given.scalars[0]),
            *(batch, n_heads, n_queries, cut.n_long, cut.parts),
            **{name: given.flags[name] for name in ("D", "WIDTH", "FOLD")},
            **{"STATS": stats, "M": shape.rows, "num_warps": 4},
        )
    if stats:
        reduce_extremes_kernel[(n_heads,)](extremes, high, low, batch, n_heads, cut.tiles, BLOCK=1024, num_warps=4)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Implements longshort::triton_backward."""
    grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if grad.numel() == 0:
        return grad_q.zero_(), grad_k.zero_(), grad_v.zero_()
    q, k, v = (_addressable(x) for x in without_padding(segments, q, k, v))
    grad = _addressable(dense_rows(grad))
    if segments is not None:
        grad = grad.masked_fill((segments[:, k.shape[2] - q.shape[2] :] < 0)[:, None, :, None], 0)
    given = _arguments(q, k, options, segments)
    # In two-sided attention its registers cost more than it saves (benchmarks/results/las-h200.json).
    given.flags["FADE"] &= options.causal
    padded = _tiles_in(q.shape[2] + _PAD - 1, _PAD) * _PAD
    numbers = torch.empty((2, *lse.shape[:2], padded), dtype=torch.float32, device=q.device)
    _query_gradients(given, grad, q, k, v, out, lse, numbers, grad_q)
    _key_value_gradients(given, grad, q, k, v, numbers, grad_k, grad_v)
    return grad_q, grad_k, grad_v


def _query_gradients(
    given: _Arguments,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    numbers: Tensor,
    grad_q: Tensor,
) -> None:
    """Fill grad_q and the two numbers per row that the other kernel reads."""
    batch, _, n_queries, head_dim = q.shape
    shape = tile_shape("grad_q", q, given.windows)
    cut = _cut(shape, given, 1, batch, n_queries, shape.rows, k.shape[2], shape.columns, q.device)
    partial = q.new_empty((cut.slots, cut.parts, n_queries, width_of(head_dim)), dtype=torch.float32)
    tma = _descriptors_serve(grad, q, k, v)
    grad_q_kernel[cut.grid](
        *_tiled((grad, q, k, v), (shape.rows, shape.rows, shape.columns, shape.columns), tma),
        *(out, lse, numbers, grad_q, partial, cut.heads, *given.tables),
        *(*grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]),
        *(*given.scalars, cut.n_long, cut.parts, numbers.shape[3]),
        **{"TMA": tma, "SPLIT": cut.parts > 1, "PAD": _PAD, **given.flags, **_tiling(shape)},
    )
    _add_parts(partial, grad_q, cut, given.scalars[0])


def _key_value_gradients(
    given: _Arguments,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    numbers: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
) -> None:
    """Fill grad_k and grad_v."""
    (batch, n_heads, n_queries, head_dim), (_, n_kv, n_keys, _) = q.shape, k.shape
    shape = tile_shape("grad_kv", q, given.windows)
    cut = _cut(shape, given, n_heads // n_kv, batch, n_keys, shape.columns, n_queries, shape.rows, q.device)
    size = (cut.slots, cut.parts, n_keys, width_of(head_dim))
    partial_k, partial_v = (q.new_empty(size, dtype=torch.float32) for _ in range(2))
    tma = _descriptors_serve(grad, q, k, v)
    grad_kv_kernel[cut.grid](
        *_tiled((grad, q, k, v), (shape.rows, shape.rows, shape.columns, shape.columns), tma),
        *_tiled(tuple(numbers), (shape.rows, shape.rows), tma),
        *(grad_k, grad_v, partial_k, partial_v, cut.heads, *given.tables),
        *(*grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad_k.stride()[:3]),
        *(*given.scalars, cut.n_long, cut.parts, numbers.shape[3]),
        **{"TMA": tma, "SPLIT": cut.parts > 1, **given.flags, **_tiling(shape)},
    )
    _add_parts(partial_k, grad_k, cut, given.scalars[0])
    _add_parts(partial_v, grad_v, cut, 1.0)


def _add_parts(partial: Tensor, grad: Tensor, cut: _Cut, factor: float) -> None:
    if cut.parts == 1:
        return
    length, head_dim = grad.shape[2:]
    add_parts_kernel[(_tiles_in(length, 32), partial.shape[0])](
        *(partial, grad, cut.heads, *grad.stride()[:3], factor, cut.n_long, cut.parts, length),
        **{"D": head_dim, "WIDTH": width_of(head_dim), "ROWS": 32, "num_warps": 4},
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


def _cut(
    shape: TileShape,
    given: _Arguments,
    group: int,
    batch: int,
    owned: int,
    own: int,
    passed: int,
    other: int,
    device: torch.device,
) -> _Cut:
    """`owned` positions in tiles of `own`, each walking over `passed` positions in tiles of `other`."""
    by_reach = _by_reach(given.windows, group, device)
    tiles, steps = _tiles_in(owned, own), _tiles_in(passed, other)
    parts = 1
    if by_reach.n_long:
        sizes = {"batch": batch, "tiles": tiles, "steps": steps, "other": other, "head_dim": given.flags["D"]}
        parts = shape.parts or parts_for(
            by_reach.reach, **sizes, causal=given.flags["CAUSAL"], processors=processors(device)
        )
    grid = (batch, tiles, len(by_reach.reach) + (parts - 1) * by_reach.n_long)
    return _Cut(by_reach.heads, by_reach.n_long, tiles, parts, batch * by_reach.n_long * (parts > 1), grid)


def _tiling(shape: TileShape) -> dict[str, Any]:
    return {
        **{"M": shape.rows, "N": shape.columns, "STAGES": shape.stages},
        **{"num_warps": shape.warps, "maxnreg": shape.registers},
    }


def _tiled(tensors: tuple[Tensor, ...], rows: tuple[int, ...], tma: bool) -> list[Any]:
    """The tensors, or descriptors with which Hopper's copy engine fetches tiles of `rows` positions."""
    if not tma:
        return list(tensors)
    return [
        TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, n, width_of(x.shape[3])])
        if x.ndim == 4
        else TensorDescriptor(x, [x.numel()], [1], [n])  # numbers of rows
        for x, n in zip(tensors, rows, strict=True)
    ]


def _descriptors_serve(*tensors: Tensor) -> bool:
    """The copy engine, which exists from Hopper on, needs addresses and strides in multiples of 16 bytes."""
    if tensors[0].device.type == "cuda" and capability(tensors[0].device) < (9, 0):
        return False
    return all(x.data_ptr() % 16 == 0 and all(s * x.itemsize % 16 == 0 for s in x.stride()[:3]) for x in tensors)


def _addressable(x: Tensor) -> Tensor:
    """Kernels count in 32 bits within a tile, so a tensor whose positions are further apart than that is copied."""
    return x if x.stride(2) < 1 << 24 else x.contiguous()


def _tiles_in(length: int, size: int) -> int:
    return -(-length // size)  # Triton's own function takes microseconds


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


def _ranges(segments: Tensor) -> Tensor:
    """(B, blocks, 2): the lowest and highest segment of each block of positions."""
    (batch, length), per_program = segments.shape, 16
    blocks = _tiles_in(length, segment_ranges.BLOCK.value)
    ranges = segments.new_empty(batch, blocks, 2)
    segment_ranges.segment_ranges_kernel[(batch, _tiles_in(blocks, per_program))](
        segments, ranges, length, blocks, BLOCKS=per_program, num_warps=4
    )
    return ranges


class _Arguments(NamedTuple):
    """What all kernels share, in the order of their arguments."""

    tables: tuple[Tensor, ...]
    scalars: tuple[float, ...]
    flags: dict[str, Any]
    windows: tuple[int, ...]
    """One for each query head."""


def _arguments(q: Tensor, k: Tensor, options: Options, segments: Tensor | None) -> _Arguments:
    """The arguments of a call; another table stands in for one that is not used."""
    (batch, n_heads, n_queries, head_dim), n_keys = q.shape, k.shape[2]
    scale, softcap = options.scale_for(q), options.softcap
    reach = table(options.windows, torch.int32, q.device)
    rates = [
        table(rate, torch.float32, q.device) if rate is not None and any(rate) else None
        for rate in (options.decays, options.slopes)
    ]
    ids = reach if segments is None else segments.to(torch.int64).contiguous()
    skip = segments is not None and n_keys > segment_ranges.SHORT.value and max(options.windows) >= LONG
    linear = scale > 0 and softcap is None and rates[1] is None
    flags = {
        **{"GROUP": n_heads // k.shape[1], "D": head_dim, "WIDTH": width_of(head_dim)},
        **{"CAUSAL": options.causal, "DECAY": rates[0] is not None, "SLOPE": rates[1] is not None},
        **{"SOFTCAP": softcap is not None, "SEGMENTS": segments is not None, "SKIP": skip},
        "FOLD": linear and rates[0] is None,
        "FADE": linear and 0 < max(options.decays or [0.0]) <= FADES,
        "PRECISION": precision_of(q),
    }
    return _Arguments(
        (reach, *(reach if rate is None else rate for rate in rates), ids, _ranges(ids) if skip else ids),
        (scale, 1.0 if softcap is None else softcap, batch, n_heads, n_queries, n_keys),
        flags,
        options.windows,
    )
