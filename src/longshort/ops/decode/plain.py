"""A decoding step in PyTorch, on any device: KV heads with the same layout in the cache are computed together.

Shapes: B batch, H query heads, h query heads of one pool, H_kv key/value heads, T new tokens, D head dimension,
R rows of a head's pool.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from longshort.ops.decode.layout import HeadLayout, results_of
from longshort.ops.options import Options
from longshort.ops.scores import scores


class _PoolView(NamedTuple):
    heads: list[int]
    layout: HeadLayout
    """First row of its first head; the others follow, each `rows + kept` later."""


@lru_cache(maxsize=64)
def _pools(layout: tuple[int, ...]) -> list[_PoolView]:
    """Neighbouring KV heads with equally many rows form one pool."""
    pools: list[_PoolView] = []
    for head in range(len(layout) // 4):
        own = HeadLayout(*layout[4 * head : 4 * head + 4])
        for pool in pools:
            following = pool.layout._replace(first=pool.layout.first + len(pool.heads) * (own.rows + own.kept))
            if own == following:
                pool.heads.append(head)
                break
        else:
            pools.append(_PoolView([head], own))
    return pools


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    tickets: Tensor,
    layout: tuple[int, ...],
    options: Options,
    extremes: int,
    sinks: Tensor | None = None,
    begins: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implements longshort::plain_decode, pool by pool."""
    out, high, low = results_of(q, extremes)
    if out.numel() == 0:
        return out, high.fill_(-torch.inf), low.fill_(torch.inf)
    group = q.shape[1] // k.shape[1]
    for pool in _pools(layout):
        heads = [head * group + i for head in pool.heads for i in range(group)]
        index = torch.tensor(heads, device=q.device)
        own_keys, own_values = (_pool(x, pool, q) for x in (keys, values))
        attended, logits, seen = _attend_pool(
            q[:, index], k[:, pool.heads], v[:, pool.heads], own_keys, own_values, length, segments, heads, options,
            None if sinks is None else sinks[index], pool.layout.kept, begins,
        )  # fmt: skip
        out[:, index] = attended.to(out.dtype)
        if extremes:
            high[index] = logits.masked_fill(~seen, -torch.inf).amax((0, 2, 3)).float()
        if extremes == 2:
            low[index] = logits.masked_fill(~seen, torch.inf).amin((0, 2, 3)).float()
    return out, high, low


def _pool(storage: Tensor, pool: _PoolView, q: Tensor) -> Tensor:
    """(B, heads, kept + R, D), a view."""
    dim, (first, apart, rows, kept) = q.shape[3], pool.layout
    shape, strides = (q.shape[0], len(pool.heads), kept + rows, dim), (apart * dim, (kept + rows) * dim, dim, 1)
    return storage.as_strided(shape, strides, storage.storage_offset() + (first - kept) * dim)


def _attend_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    heads: list[int],
    options: Options,
    sinks: Tensor | None,
    kept: int,
    begins: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """For the query heads `heads` of one pool: outputs (B, h, T, D), logits (B, h, T, R), and which rows they see."""
    new, ring, group = k.shape[2], keys.shape[2] - kept, q.shape[1] // k.shape[1]
    t_T = length + torch.arange(new, device=q.device)
    begin_BT = torch.zeros_like(t_T)[None] if begins is None else begins
    first_keys, first_values = (x[:, :, :kept].clone() for x in (keys, values))
    if kept:
        _keep(keys[:, :, :kept], k, t_T, begin_BT, segments)
        _keep(values[:, :, :kept], v, t_T, begin_BT, segments)
    keys, values = keys[:, :, kept:], values[:, :, kept:]
    keys.index_copy_(2, t_T % ring, k.to(keys.dtype))
    values.index_copy_(2, t_T % ring, v.to(values.dtype))
    rows = ring
    if length.device.type == "cpu":  # reading the length is free here, and rows not yet written need not be read
        rows = min(ring, int(length) + new)
        keys, values = keys[:, :, :rows], values[:, :, :rows]
    last = length + new - 1
    j_BR = (last - (last - torch.arange(rows, device=q.device)) % ring)[None]
    there_BR = j_BR >= 0
    if kept:  # what is kept there is not seen in the ring too
        first_BR = begin_BT[:, :1] + torch.arange(kept, device=q.device)
        there_BR = there_BR & ((j_BR >= length) | (j_BR < begin_BT[:, :1]) | (j_BR >= begin_BT[:, :1] + kept))
        j_BR = torch.cat((first_BR, j_BR.expand(len(begin_BT), -1)), dim=1)
        there_BR = torch.cat((first_BR < length, there_BR), dim=1)
        keys, values = torch.cat((first_keys, keys), dim=2), torch.cat((first_values, values), dim=2)
    offset_BTR = t_T[:, None] - j_BR[:, None]
    reach = torch.tensor([options.windows[head] for head in heads], device=q.device)
    within = offset_BTR[:, None] < reach[:, None, None]
    if options.firsts is not None:
        first = torch.tensor([options.firsts[head] for head in heads], device=q.device)
        rank_BTR = j_BR[:, None] - begin_BT[:, :, None]
        within = within | (((rank_BTR >= 0)[:, None]) & (rank_BTR[:, None] < first[:, None, None]))
    seen = (there_BR[:, None] & (offset_BTR >= 0))[:, None] & within
    if segments is not None:
        theirs = segments.gather(1, j_BR.clamp(min=0, max=segments.shape[1] - 1).expand(len(segments), -1))
        ours = segments[:, t_T, None]
        seen = seen & ((theirs[:, None] == ours) & (ours >= 0))[:, None]
    used = seen.any(2).unflatten(1, (-1, group)).any(2)
    dtype = torch.promote_types(keys.dtype, torch.float32)
    hidden = ~used[..., None]  # what such rows hold, even NaN, must not affect anything
    k_BHRD, v_BHRD = (x.to(dtype).masked_fill(hidden, 0).repeat_interleave(group, dim=1) for x in (keys, values))
    q_BHTD = q.to(keys.dtype).to(dtype)
    logits = options.scale_for(q) * (q_BHTD @ k_BHRD.mT)
    decays, slopes = (_per_head(rates, heads, q.device) for rates in (options.decays, options.slopes))
    x = scores(logits, offset_BTR.abs()[:, None], decays, slopes, options.softcap)
    blind = ~seen.any(-1, keepdim=True)
    x = x.masked_fill(~seen, -torch.inf).masked_fill(blind, 0)
    weights = x.softmax(-1).masked_fill(blind, 0)
    if sinks is not None:
        weights = weights * torch.sigmoid(x.logsumexp(-1, keepdim=True) - sinks.to(dtype)[:, None, None])
    return weights @ v_BHRD, logits, seen.expand_as(logits)


def _keep(rows: Tensor, new: Tensor, t_T: Tensor, begin_BT: Tensor, segments: Tensor | None) -> None:
    """Write those of the new tokens that are first keys of the last one's document to their rows."""
    count, rank_BT = rows.shape[2], t_T - begin_BT
    given = (rank_BT < count) & (begin_BT == begin_BT[:, -1:])
    if segments is not None:
        given = given & (segments[:, t_T] >= 0)
    at = torch.where(given, rank_BT, count)[:, None, :, None].expand(*new.shape[:3], new.shape[3])
    wider = torch.cat((rows, rows[:, :, :1]), dim=2)  # what is not kept goes to one more row
    rows.copy_(wider.scatter_(2, at, new.to(rows.dtype))[:, :, :count])


def _per_head(rates: tuple[float, ...] | None, heads: list[int], device: torch.device) -> Tensor | None:
    """(h, 1, 1) float64."""
    if rates is None:
        return None
    return torch.tensor([rates[head] for head in heads], dtype=torch.float64, device=device)[:, None, None]
