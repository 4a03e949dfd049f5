"""PyTorch's scaled dot-product attention as a backend, chosen by name: one call per distinct reach.

A peer to measure against and to train with, differentiable by autograd and traced by torch.compile. It supports
windows, first keys, causal and two-sided, grouped queries and S >= T; it returns no lse and no statistics, and raises
on anything it does not support.

Shapes: B batch, H query heads, H_kv key/value heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.ops.heads import of_heads
from longshort.ops.options import Options

LARGEST_MASK = 1 << 26
"""Largest dense T x S mask, which a window or more keys than queries need here: past 64 MiB per call, and two or four
times that where a kernel converts it to floats, a local head has no advantage left."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, segments: Tensor | None, extremes: int
) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D), and in place of an lse, which SDPA does not give, an empty tensor (0,)."""
    why = _cannot(q, k, options, segments, extremes)
    if why is not None:
        raise ValueError(f'backend="sdpa" cannot serve this call: {why}')
    lse = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    if q.numel() == 0:
        return q.clone(), lse
    by_reach: dict[tuple[int, int], list[int]] = {}
    for head, window in enumerate(options.windows):
        first = 0 if options.firsts is None else options.firsts[head]
        by_reach.setdefault((min(window, k.shape[2]), first), []).append(head)
    parts = [_attend_alike(q, k, v, *reach, heads, options) for reach, heads in by_reach.items()]
    if len(parts) == 1:
        return parts[0], lse
    order = [head for heads in by_reach.values() for head in heads]
    out = torch.cat(parts, dim=1)
    return out if order == sorted(order) else out[:, [order.index(head) for head in range(len(order))]], lse


def _cannot(q: Tensor, k: Tensor, options: Options, segments: Tensor | None, extremes: int) -> str | None:
    """Why SDPA cannot compute this, or None."""
    if extremes:
        return "SDPA has no logit statistics; call it with stats=False, and train with telemetry.logits_every=0"
    if segments is not None:
        return "segments would need a T x S mask for every sequence"
    if options.softcap is not None:
        return f"SDPA has no softcap, got {options.softcap}"
    if options.decays is not None:
        return "SDPA has no decay, and the plan has decays"
    if options.slopes is not None:
        return "slopes would need a T x S mask for every head, rounded to the dtype of q, and the plan has slopes"
    if options.scale is not None and options.scale <= 0:
        return f"its kernels scale after masking, so scale must be positive, got {options.scale}"
    size = q.shape[2] * k.shape[2]
    if size > LARGEST_MASK and any(_needs_mask(q, k, window, options.causal) for window in options.windows):
        return (
            f"a window needs a dense mask here, and T x S = {q.shape[2]} x {k.shape[2]} is more than {LARGEST_MASK} "
            'entries; backend="auto" computes only the visible keys'
        )
    return None


def _needs_mask(q: Tensor, k: Tensor, window: int, causal: bool) -> bool:
    """Is SDPA's own flag not enough to say what a head sees? Its causal mask is aligned top-left, ours bottom-right."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    if window < n_keys:
        return True
    return causal and n_queries not in (1, n_keys)


def _attend_alike(
    q: Tensor, k: Tensor, v: Tensor, window: int, first: int, heads: list[int], options: Options
) -> Tensor:
    """Heads of one reach, (B, heads, T, D)."""
    n_queries, n_keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    kv_heads = [head // group for head in heads]
    whole = kv_heads == [head for head in dict.fromkeys(kv_heads) for _ in range(group)]
    if whole:  # all query heads of their KV heads, in order
        kv_heads = list(dict.fromkeys(kv_heads))
    q, k, v = of_heads(q, heads), of_heads(k, kv_heads), of_heads(v, kv_heads)
    masked = _needs_mask(q, k, window, options.causal)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=visible_pairs(n_queries, n_keys, window, options.causal, q.device, first) if masked else None,
        is_causal=options.causal and not masked and n_queries > 1,
        scale=options.scale,
        enable_gqa=whole and group > 1,
    )


def visible_pairs(
    n_queries: int, n_keys: int, window: int, causal: bool, device: torch.device, first: int = 0
) -> Tensor:
    """(T, S): may query t, the last T of the positions, see key j?

    >>> visible_pairs(2, 4, 2, True, torch.device("cpu")).int().tolist()
    [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    keys = torch.arange(n_keys, device=device)
    offset = keys[n_keys - n_queries :, None] - keys
    within = (offset.abs() < window) | (keys < first)
    return within & (offset >= 0) if causal else within
