"""From tensors to kernel launches: tile shapes, grids and the arguments that all kernels share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from longshort.ops.groups import dense_rows, without_padding
from longshort.ops.triton.kernels import forward_kernel, grad_kv_kernel, grad_q_kernel


class TileShape(NamedTuple):
    """Rows and columns of a tile, and how the compiler lays it out."""

    rows: int
    columns: int
    warps: int
    stages: int


def tile_shape(head_dim: int, dtype: torch.dtype) -> TileShape:
    """Conservative shapes that fit GPUs with 99 KB of shared memory; not tuned yet."""
    if dtype == torch.float32:
        return TileShape(32, 32, 4, 2) if head_dim > 64 else TileShape(64, 32, 4, 2)
    return TileShape(64, 64, 4, 2)


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
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=torch.float32)
    n_heads, n_queries = q.shape[1], q.shape[2]
    extremes = [q.new_full((n_heads if stats else 0,), value, dtype=torch.float32) for value in (-torch.inf, torch.inf)]
    if out.numel() == 0:
        return out, lse, extremes[0], extremes[1]
    q, k, v = without_padding(segments, q, k, v)
    shape = tile_shape(q.shape[3], q.dtype)
    n_tiles = triton.cdiv(n_queries, shape.rows)
    partial = q.new_empty((2, q.shape[0], n_heads, n_tiles if stats else 0), dtype=torch.float32)
    tables, options = _shared(q, k, windows, decays, slopes, scale, causal, softcap, segments, shape)
    forward_kernel[(n_tiles, q.shape[0] * n_heads)](
        *(q, k, v, out, lse, partial[0], partial[1], *tables),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]),
        STATS=stats,
        **options,
    )
    if stats:
        extremes = [partial[0].amax((0, 2)), partial[1].amin((0, 2))]
    return out, lse, extremes[0], extremes[1]


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
    grads = [torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v)]
    if grad.numel() == 0:
        return grads[0], grads[1], grads[2]
    q, k, v = without_padding(segments, q, k, v)
    grad = dense_rows(grad)
    if segments is not None:
        grad = grad.masked_fill((segments[:, k.shape[2] - q.shape[2] :] < 0)[:, None, :, None], 0)
    delta = (grad.float() * out.float()).sum(-1)
    shape = tile_shape(q.shape[3], q.dtype)
    tables, options = _shared(q, k, windows, decays, slopes, scale, causal, softcap, segments, shape)
    strides = (*grad.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3])
    grad_q_kernel[(triton.cdiv(q.shape[2], shape.rows), q.shape[0] * q.shape[1])](
        *(grad, q, k, v, lse, delta, grads[0], *tables), *strides, *grads[0].stride()[:3], **options
    )
    grad_kv_kernel[(triton.cdiv(k.shape[2], shape.columns), k.shape[0] * k.shape[1])](
        *(grad, q, k, v, lse, delta, grads[1], grads[2], *tables), *strides, *grads[1].stride()[:3], **options
    )
    return grads[0], grads[1], grads[2]


def _shared(
    q: Tensor,
    k: Tensor,
    windows: list[int],
    decays: list[float] | None,
    slopes: list[float] | None,
    scale: float | None,
    causal: bool,
    softcap: float | None,
    segments: Tensor | None,
    shape: TileShape,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The per-head tables, and every option by keyword. A table that is not used is stood in for by another."""
    n_keys, head_dim = k.shape[2], q.shape[3]
    reach = torch.tensor([min(w or n_keys, n_keys) for w in windows], dtype=torch.int32, device=q.device)
    rates = [None if r is None else torch.tensor(r, dtype=torch.float32, device=q.device) for r in (decays, slopes)]
    ids = reach if segments is None else segments.to(torch.int64).contiguous()
    tables = (reach, *(reach if r is None else r for r in rates), ids)
    exact = not (q.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32)
    options = {
        "scale": head_dim**-0.5 if scale is None else scale,
        "softcap": 1.0 if softcap is None else softcap,
        **{"H": q.shape[1], "T": q.shape[2], "S": n_keys, "GROUP": q.shape[1] // k.shape[1]},
        **{"D": head_dim, "WIDTH": max(16, triton.next_power_of_2(head_dim)), "M": shape.rows, "N": shape.columns},
        **{"CAUSAL": causal, "DECAY": rates[0] is not None, "SLOPE": rates[1] is not None},
        **{"SOFTCAP": softcap is not None, "SEGMENTS": segments is not None},
        "PRECISION": "ieee" if exact else "tf32",
        **{"num_warps": shape.warps, "num_stages": shape.stages},
    }
    return tables, options
