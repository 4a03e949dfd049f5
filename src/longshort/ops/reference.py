"""The definition of the op: dense, readable, for any dtype; every test compares against it.

Shapes: B batch, H query heads, T queries, S >= T keys (queries are the last T positions), D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.ops.smoothing import Smoothing, pool_rows


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: HeadPlan,
    *,
    scale: float,
    causal: bool,
    softcap: float | None,
    segments: Tensor | None,
    pooling: Smoothing | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """softmax(x) V per head, x[t, j] = softcap(scale q_t.k_j exp(-decay |t-j|)) - slope |t-j| over the visible keys.

    `pooling` averages the decayed logits along the keys of a row, before softcap, slope and window: see
    `smoothing.pool_rows`. Those of other segments, of padding and, in causal attention, of later keys count as zeros.
    With `plan.firsts` a head also sees the first keys of its segment, or of the sequence without segments.
    `sinks` (H,) are the scores of one more key per head, whose value is zero; rows that see nothing do not see it.
    Returns out (B, H, T, D), lse (B, H, T), and the largest and smallest scale q_t.k_j over visible pairs, each (H,);
    with pooling, of the pooled ones, which decay by no more than their differences in distance.
    """
    n_queries, n_keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    dtype = torch.promote_types(q.dtype, torch.float32)
    q_BHTD = q.to(dtype)
    k_BHSD, v_BHSD = (x.to(dtype).repeat_interleave(group, dim=1) for x in (k, v))
    keys_S = torch.arange(n_keys, device=q.device)
    offset_TS = keys_S[n_keys - n_queries :, None] - keys_S  # t - j
    distance_TS = offset_TS.abs().to(dtype)

    visible = _within_reach(offset_TS, plan, causal)[None]
    if plan.firsts is not None:
        rank_BS = keys_S[None] if segments is None else _ranks(segments)
        first = rank_BS[:, None, None] < torch.tensor(plan.firsts, device=q.device)[:, None, None]
        visible = visible | (first & (offset_TS >= 0) if causal else first)
    pooled = offset_TS >= 0 if causal else torch.ones_like(offset_TS, dtype=torch.bool)
    if segments is not None:
        padded = (segments < 0)[:, None, :, None]  # what padding holds, even NaN, must not affect anything
        q_BHTD = q_BHTD.masked_fill(padded[:, :, n_keys - n_queries :], 0)
        k_BHSD, v_BHSD = k_BHSD.masked_fill(padded, 0), v_BHSD.masked_fill(padded, 0)
        ours = segments[:, n_keys - n_queries :, None]
        together = ((ours == segments[:, None, :]) & (ours >= 0))[:, None]
        visible, pooled = visible & together, pooled & together

    logits = scale * (q_BHTD @ k_BHSD.mT)
    x = logits
    if plan.decays is not None:
        x = x * torch.exp(-_per_head(plan.decays, q.device) * distance_TS).to(dtype)
    if pooling is not None:
        x = pool_rows(x.masked_fill(~pooled, 0), pooling)
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    if plan.slopes is not None:
        x = x - (_per_head(plan.slopes, q.device) * distance_TS).to(dtype)
    x = x.masked_fill(~visible, -torch.inf)

    blind = ~visible.any(-1, keepdim=True)  # rows that see nothing give zeros, not NaN
    if sinks is not None:
        sink = sinks.to(dtype)[None, :, None, None].expand(*x.shape[:3], 1)
        x = torch.cat((x, sink.masked_fill(blind, -torch.inf)), dim=-1)
        v_BHSD = torch.cat((v_BHSD, v_BHSD.new_zeros(*v_BHSD.shape[:2], 1, v_BHSD.shape[3])), dim=2)
    probabilities = x.masked_fill(blind, 0).softmax(-1)
    # Decay makes far logits equal, and softmax on a CPU adds 10^5 equal terms one by one, all rounded the same way.
    probabilities = (probabilities / probabilities.sum(-1, keepdim=True)).masked_fill(blind, 0)
    out = (probabilities @ v_BHSD).to(q.dtype)
    with torch.no_grad():
        if pooling is not None:
            logits = pool_rows(logits.masked_fill(~pooled, 0), pooling, _nearness(plan.decays, offset_TS, dtype))
        lse = x.logsumexp(-1) if x.shape[-1] else x.new_full(x.shape[:3], -torch.inf)
        largest = _over_heads(logits.masked_fill(~visible, -torch.inf), torch.amax, -torch.inf)
        smallest = _over_heads(logits.masked_fill(~visible, torch.inf), torch.amin, torch.inf)
    return out, lse, largest, smallest


def _within_reach(offset_TS: Tensor, plan: HeadPlan, causal: bool) -> Tensor:
    """(H, T, S): does the head's window, and causality, let query t see key j?"""
    heads = []
    for window in plan.windows:
        visible = offset_TS >= 0 if causal else torch.ones_like(offset_TS, dtype=torch.bool)
        heads.append(visible if window is None else visible & (offset_TS.abs() < window))
    return torch.stack(heads)


def _ranks(segments: Tensor) -> Tensor:
    """(B, S): how many earlier keys of its own segment each key has."""
    return (segments[:, :, None] == segments[:, None, :]).tril(-1).sum(-1)


def _nearness(
    decays: tuple[float, ...] | None, offset_TS: Tensor, dtype: torch.dtype
) -> Callable[[int], Tensor] | None:
    """exp(-decay (|t - j - offset| - |t - j|)): how much less, or more, the key at an offset from j decays than j."""
    if decays is None:
        return None
    rates = _per_head(decays, offset_TS.device)

    def weight(offset: int) -> Tensor:
        further = (offset_TS - offset).abs() - offset_TS.abs()
        return torch.exp((-rates * further).clamp(max=80.0)).to(dtype)  # a finite number, whatever the decay

    return weight


def _per_head(rates: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(rates, dtype=torch.float64, device=device)[:, None, None]


def _over_heads(logits_BHTS: Tensor, extreme: Callable[..., Tensor], empty: float) -> Tensor:
    if logits_BHTS.numel() == 0:
        return torch.full((logits_BHTS.shape[1],), empty, dtype=torch.float32, device=logits_BHTS.device)
    return extreme(logits_BHTS, dim=(0, 2, 3)).float()
