"""From tensors to kernel launches: which heads go together, grids, and the arguments that all kernels share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from longshort.ops.groups import dense_rows, without_padding
from longshort.ops.triton.backward_kernels import grad_kv_kernel, grad_q_kernel
from longshort.ops.triton.forward_kernel import forward_kernel, reduce_extremes_kernel
from longshort.ops.triton.tiles import TileShape, tile_shape

_EVERYTHING = 1 << 30
"""The window of a global head in the kernels' tables."""


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: list[int],
    decays: list[float] | None,
    slopes: list[float] | None,
    scale: float | None,
    causal: bool,
    softcap: float | None,
    segments: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Implements longshort::triton_forward."""
    (batch, n_heads, n_queries, head_dim), n_keys = q.shape, k.shape[2]
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)
    if out.numel() == 0:
        nothing = [q.new_full((n_heads if stats else 0,), x, dtype=torch.float32) for x in (-torch.inf, torch.inf)]
        return out, lse, nothing[0], nothing[1]
    q, k, v = without_padding(segments, q, k, v)
    shape = tile_shape("forward", head_dim, q.dtype)
    plan = _planned(tuple(windows), 1, shape.short_rows, shape.short_columns, causal, shape.most_tiles, q.device)
    long_tiles, short_runs = triton.cdiv(n_queries, shape.long_rows), _runs(n_queries, shape.short_rows, shape)
    n_partial = max(long_tiles if plan.has_long else 0, short_runs if plan.has_short else 0)
    extremes = q.new_empty((2, batch, n_heads, n_partial) if stats else (0,), dtype=torch.float32)
    tables, options = _shared(q, k, plan.windows, decays, slopes, scale, causal, softcap, segments)
    for launch in plan.launches:
        grid = batch * (launch.n_long * long_tiles + launch.n_short * short_runs)
        forward_kernel[(grid,)](
            *(q, k, v, out, lse, extremes, launch.heads, *tables),
            *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]),
            *(*options.scalars, batch, n_heads, n_queries, n_keys, launch.n_long, launch.n_short, n_partial),
            STATS=stats,
            **options.flags,
            **_tiling(shape, launch),
        )
    high, low = (q.new_empty(n_heads if stats else 0, dtype=torch.float32) for _ in range(2))
    if not stats:
        return out, lse, high, low
    reduce_extremes_kernel[(n_heads,)](
        extremes, plan.is_short, high, low, batch, n_heads, n_partial, long_tiles, short_runs, BLOCK=1024, num_warps=4
    )
    return out, lse, high, low


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    windows: list[int],
    decays: list[float] | None,
    slopes: list[float] | None,
    scale: float | None,
    causal: bool,
    softcap: float | None,
    segments: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implements longshort::triton_backward."""
    (batch, n_heads, n_queries, head_dim), (_, n_kv, n_keys, _) = q.shape, k.shape
    if grad.numel() == 0:
        return torch.zeros(q.shape).to(q), torch.zeros(k.shape).to(k), torch.zeros(v.shape).to(v)
    grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    q, k, v = without_padding(segments, q, k, v)
    grad = dense_rows(grad)
    if segments is not None:
        grad = grad.masked_fill((segments[:, n_keys - n_queries :] < 0)[:, None, :, None], 0)
    delta = torch.empty_like(lse)
    strides = (*grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3])

    shape = tile_shape("grad_q", head_dim, q.dtype)
    plan = _planned(tuple(windows), 1, shape.short_rows, shape.short_columns, causal, shape.most_tiles, q.device)
    tables, options = _shared(q, k, plan.windows, decays, slopes, scale, causal, softcap, segments)
    sizes = (*options.scalars, batch, n_heads, n_queries, n_keys)
    for launch in plan.launches:
        grid = batch * (
            launch.n_long * triton.cdiv(n_queries, shape.long_rows)
            + launch.n_short * _runs(n_queries, shape.short_rows, shape)
        )
        grad_q_kernel[(grid,)](
            *(grad, q, k, v, out, lse, delta, grad_q, launch.heads, *tables),
            *(*strides, *out.stride()[:3], *sizes, launch.n_long, launch.n_short),
            **options.flags,
            **_tiling(shape, launch),
        )
    shape = tile_shape("grad_kv", head_dim, q.dtype)
    plan = _planned(
        tuple(windows), n_heads // n_kv, shape.short_columns, shape.short_rows, causal, shape.most_tiles, q.device
    )
    for launch in plan.launches:
        grid = batch * (
            launch.n_long * triton.cdiv(n_keys, shape.long_columns)
            + launch.n_short * _runs(n_keys, shape.short_columns, shape)
        )
        grad_kv_kernel[(grid,)](
            *(grad, q, k, v, lse, delta, grad_k, grad_v, launch.heads, *tables),
            *(*strides, *grad_k.stride()[:3], *sizes, launch.n_long, launch.n_short),
            **options.flags,
            **_tiling(shape, launch),
        )
    return grad_q, grad_k, grad_v


def _runs(length: int, rows: int, shape: TileShape) -> int:
    return int(triton.cdiv(triton.cdiv(length, rows), shape.run))


class Launch(NamedTuple):
    """Heads computed by one launch: short ones that meet equally many tiles, and with the first of these all long."""

    heads: Tensor
    """(n_long + n_short,) int32."""
    n_long: int
    n_short: int
    tiles: int
    """Tiles of the other side that a tile of a short head meets; of these ..."""
    ahead: int
    """... so many lie wholly ahead of it (two-sided form), ..."""
    far: int
    """... so many at the far end cross the edge of a window, ..."""
    near: int
    """... and so many at the near end the diagonal."""


class Planned(NamedTuple):
    """The launches for a list of windows, and the tables they read."""

    launches: tuple[Launch, ...]
    windows: Tensor
    """(H,) int32."""
    is_short: Tensor
    """(H,) int32, 1 for a short head."""
    has_long: bool
    has_short: bool


@lru_cache(maxsize=256)
def _planned(
    windows: tuple[int, ...], group: int, own: int, other: int, causal: bool, most_tiles: int, device: torch.device
) -> Planned:
    """Sort heads into launches (KV heads of `group` query heads each); `own` positions of one meet tiles of `other`.

    The tables are kept on the device: a call copies nothing to it, so CUDA graphs can hold it.
    """
    reach = [w or _EVERYTHING for w in windows]
    members = [reach[i : i + group] for i in range(0, len(reach), group)]
    long: list[int] = []
    alike: dict[tuple[int, int], list[int]] = {}
    for head, mine in enumerate(members):
        tiles, ahead = _span(max(mine), own, other, causal)
        if tiles > most_tiles:
            long.append(head)
        else:
            alike.setdefault((tiles, ahead), []).append(head)
    launches: list[Launch] = []
    for (tiles, ahead), short in sorted(alike.items(), key=lambda item: -len(item[1])) or [((1, 0), [])]:
        together = long if not launches else []
        narrowest = min((min(members[head]) for head in short), default=1)
        far, near = _masked(tiles, ahead, narrowest, own, other, causal)
        heads = torch.tensor(together + short, dtype=torch.int32, device=device)
        launches.append(Launch(heads, len(together), len(short), tiles, ahead, far, near))
    is_short = [int(head not in long) for head in range(len(members))]
    tables = [torch.tensor(x, dtype=torch.int32, device=device) for x in (reach, is_short)]
    return Planned(tuple(launches), tables[0], tables[1], bool(long), bool(alike))


def _span(window: int, own: int, other: int, causal: bool) -> tuple[int, int]:
    """How many tiles `own` positions meet, the last one ending where they end, and how many of them lie ahead."""
    ahead = 0 if causal else -(-(window - 1) // other)
    return ahead - (-(own + window - 1) // other), ahead


def _masked(tiles: int, ahead: int, narrowest: int, own: int, other: int, causal: bool) -> tuple[int, int]:
    """How many tiles at the far and at the near end hold invisible pairs."""
    first = [(tiles - ahead - p) * other - own for p in range(tiles)]  # t - j of the first pair of tile p
    far = sum(distance + own - 1 >= narrowest for distance in first)
    near = sum(distance - (other - 1) < (0 if causal else 1 - narrowest) for distance in first)
    return far, near


@lru_cache(maxsize=256)
def _rates(rates: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(rates, dtype=torch.float32, device=device)


class _Options(NamedTuple):
    scalars: tuple[float, float]
    flags: dict[str, Any]


def _shared(
    q: Tensor,
    k: Tensor,
    windows: Tensor,
    decays: list[float] | None,
    slopes: list[float] | None,
    scale: float | None,
    causal: bool,
    softcap: float | None,
    segments: Tensor | None,
) -> tuple[tuple[Tensor, ...], _Options]:
    """The per-head tables, and what all kernels are told. A table that is not used is stood in for by another."""
    head_dim = q.shape[3]
    scale = head_dim**-0.5 if scale is None else float(scale)
    rates = [None if r is None or not any(r) else _rates(tuple(r), q.device) for r in (decays, slopes)]
    ids = windows if segments is None else segments.to(torch.int64).contiguous()
    tables = (windows, *(windows if r is None else r for r in rates), ids)
    exact = not (q.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32)
    flags = {
        **{"GROUP": q.shape[1] // k.shape[1], "D": head_dim, "WIDTH": max(16, triton.next_power_of_2(head_dim))},
        **{"CAUSAL": causal, "DECAY": rates[0] is not None, "SLOPE": rates[1] is not None},
        **{"SOFTCAP": softcap is not None, "SEGMENTS": segments is not None},
        "FOLD": scale > 0 and softcap is None and rates[0] is None and rates[1] is None,
        "PRECISION": "ieee" if exact else "tf32",
    }
    return tables, _Options((scale, 1.0 if softcap is None else float(softcap)), flags)


def _tiling(shape: TileShape, launch: Launch) -> dict[str, Any]:
    return {
        **{"LONG": launch.n_long > 0, "LONG_M": shape.long_rows, "LONG_N": shape.long_columns},
        **{"SHORT": launch.n_short > 0, "SHORT_M": shape.short_rows, "SHORT_N": shape.short_columns},
        **{"LONG_STAGES": shape.long_stages, "SHORT_STAGES": shape.short_stages, "RUN": shape.run},
        **{"TILES": launch.tiles, "AHEAD": launch.ahead, "FAR": launch.far, "NEAR": launch.near},
        **{"num_warps": shape.warps, "maxnreg": shape.registers},
    }
