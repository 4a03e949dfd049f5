"""Attention within chunks, the form of linear cost that LaS (arXiv 2311.16620) and others use for long inputs.

A sequence is cut into pieces of equal length, and the op takes each for a sequence of its own: no key is seen across a
cut, no value is smoothed across it, and the cost is that of many short sequences.

Shapes: B batch, H heads, T positions, C positions of a chunk, N chunks, D head dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.heads import HeadPlan
from longshort.ops import AttentionResult, attention
from longshort.ops.api import check_segments


def attend_within_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: HeadPlan,
    chunk: int,
    *,
    segments: Tensor | None = None,
    **options: Any,
) -> AttentionResult:
    """As `attention` of q, k and v of one length T, each position seeing its own chunk only; the last may be shorter.

    >>> q, k, v = torch.randn(3, 1, 2, 10, 4).unbind()
    >>> result = attend_within_chunks(q, k, v, HeadPlan.full(2), 4)
    >>> alone = attention(q[:, :, 4:8], k[:, :, 4:8], v[:, :, 4:8], HeadPlan.full(2))
    >>> torch.allclose(result.out[:, :, 4:8], alone.out, atol=1e-6)
    True
    """
    length = q.shape[2]
    if length <= chunk:
        return attention(q, k, v, plan, segments=segments, **options)
    check_segments(q, k, segments)
    missing = -length % chunk
    if missing and segments is None:
        segments = torch.zeros(q.shape[0], length, dtype=torch.long, device=q.device)
    if segments is not None:
        segments = F.pad(segments, (0, missing), value=-1).unflatten(1, (-1, chunk)).flatten(0, 1)
    q_cut, k_cut, v_cut = (_cut(x, chunk, missing) for x in (q, k, v))
    result = attention(q_cut, k_cut, v_cut, plan, segments=segments, **options)
    chunks = -(-length // chunk)
    return AttentionResult(
        _joined(result.out, chunks)[:, :, :length],
        _joined(result.lse[..., None], chunks)[:, :, :length, 0] if result.lse.ndim == 3 else result.lse,
        result.stats,
    )


def _cut(x: Tensor, chunk: int, missing: int) -> Tensor:
    """(B N, H, C, D) of (B, H, T, D); a view where nothing is missing and x lies as the projection wrote it."""
    by_position = F.pad(x, (0, 0, 0, missing)).transpose(1, 2) if missing else x.transpose(1, 2)
    return by_position.unflatten(1, (-1, chunk)).flatten(0, 1).transpose(1, 2)


def _joined(x: Tensor, chunks: int) -> Tensor:
    """(B, H, T, D) of (B N, H, C, D)."""
    return x.transpose(1, 2).unflatten(0, (-1, chunks)).flatten(1, 2).transpose(1, 2)
