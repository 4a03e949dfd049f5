"""One decoding step: new tokens join a cache of fixed size and attend over it; schema, fake and the plain form.

For `nn.static_cache`, not for users. Everything that changes from step to step is on the device, so that a step can be
captured in a CUDA graph and compiled. The Triton form, one launch, is in `triton/decode_launch.py`.

Shapes: B batch, H query heads, H_kv key/value heads, T new tokens, D head dimension, R rows of a head's pool.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.ops.api import LogitStats, chosen_backend
from longshort.ops.decode_layout import HeadLayout, results_of
from longshort.ops.schema import GLOBAL

_library = torch.library.Library("longshort", "FRAGMENT")
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor length, Tensor? segments, "
    "Tensor(c!) tickets, int[] layout, int[] windows, float[]? decays, float[]? slopes, float? scale, float? softcap, "
    "bool stats) -> (Tensor out, Tensor logit_max, Tensor logit_min)"
)


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    tickets: Tensor,
    layout: tuple[HeadLayout, ...],
    plan: HeadPlan,
    *,
    softcap: float | None = None,
    stats: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, LogitStats | None]:
    """Write k and v (B, H_kv, T, D) into the cache and attend from q (B, H, T, D) over all that each head sees.

    Args:
        keys, values: flat storage; written in place.
        length: (1,) int64, positions held before this call.
        segments: (B, columns) int64 of all positions, the new ones included; a negative id is padding.
        tickets: at least B * H_kv int32, zero before and after: for the kernel's own use, one launch at a time.
        layout: of each KV head. A ring must have room for what any of the T tokens sees.
        backend: as in `attention`; every backend but Triton means the plain form.
    """
    ops = torch.ops.longshort
    op = ops.triton_decode if chosen_backend(backend, q) == "triton" else ops.plain_decode
    numbers = [number for head in layout for number in head]
    windows = [GLOBAL if w is None else w for w in plan.windows]
    out, high, low = op(
        q,
        k,
        v,
        keys,
        values,
        length,
        segments,
        tickets,
        numbers,
        windows,
        plan.decays,
        plan.slopes,
        None,
        softcap,
        stats,
    )
    return out, LogitStats(high, low) if stats else None


class _PoolView(NamedTuple):
    heads: list[int]
    layout: HeadLayout
    """Of its first head; the others follow, each `rows` later."""


@lru_cache(maxsize=64)
def _pools(layout: tuple[int, ...]) -> list[_PoolView]:
    """KV heads that lie one after the other with equally many rows are computed together."""
    pools: list[_PoolView] = []
    for head in range(len(layout) // 3):
        own = HeadLayout(*layout[3 * head : 3 * head + 3])
        for pool in pools:
            following = pool.layout._replace(first=pool.layout.first + len(pool.heads) * own.rows)
            if own == following:
                pool.heads.append(head)
                break
        else:
            pools.append(_PoolView([head], own))
    return pools


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    tickets: Tensor,
    layout: list[int],
    windows: list[int],
    decays: list[float] | None,
    slopes: list[float] | None,
    scale: float | None,
    softcap: float | None,
    stats: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implements longshort::plain_decode, pool by pool."""
    out, high, low = results_of(q, stats)
    if out.numel() == 0:
        return out, high.fill_(-torch.inf), low.fill_(torch.inf)
    group = q.shape[1] // k.shape[1]
    rates = [None if r is None else torch.tensor(r, dtype=torch.float64, device=q.device) for r in (decays, slopes)]
    for pool in _pools(tuple(layout)):
        heads = [head * group + i for head in pool.heads for i in range(group)]
        index = torch.tensor(heads, device=q.device)
        reach = torch.tensor([windows[head] or 1 << 62 for head in heads], device=q.device)
        decay, slope = (None if r is None else r[index] for r in rates)
        own_keys, own_values = (_pool(x, pool, q) for x in (keys, values))
        attended, logits, seen = _attend_pool(
            q[:, index], k[:, pool.heads], v[:, pool.heads], own_keys, own_values, length, segments,
            reach, decay, slope, scale, softcap,
        )  # fmt: skip
        out[:, index] = attended.to(out.dtype)
        if stats:
            high[index] = logits.masked_fill(~seen, -torch.inf).amax((0, 2, 3)).float()
            low[index] = logits.masked_fill(~seen, torch.inf).amin((0, 2, 3)).float()
    return out, high, low


def _pool(storage: Tensor, pool: _PoolView, q: Tensor) -> Tensor:
    """(B, heads, R, D), a view."""
    dim, (first, apart, rows) = q.shape[3], pool.layout
    shape, strides = (q.shape[0], len(pool.heads), rows, dim), (apart * dim, rows * dim, dim, 1)
    return storage.as_strided(shape, strides, storage.storage_offset() + first * dim)


def _attend_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    reach: Tensor,
    decays: Tensor | None,
    slopes: Tensor | None,
    scale: float | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the query heads of one pool: what they attend to (B, h, T, D), logits (B, h, T, R) and what they see."""
    new, ring, group = k.shape[2], keys.shape[2], q.shape[1] // k.shape[1]
    t_T = length + torch.arange(new, device=q.device)
    keys.index_copy_(2, t_T % ring, k.to(keys.dtype))
    values.index_copy_(2, t_T % ring, v.to(values.dtype))
    rows = ring
    if length.device.type == "cpu":  # reading it costs nothing here, and rows not yet written need not be read
        rows = min(ring, int(length) + new)
        keys, values = keys[:, :, :rows], values[:, :, :rows]
    last = length + new - 1
    j_R = last - (last - torch.arange(rows, device=q.device)) % ring
    offset_TR = t_T[:, None] - j_R
    seen = ((j_R >= 0) & (offset_TR >= 0))[None, None] & (offset_TR < reach[:, None, None])
    if segments is not None:
        theirs = segments[:, j_R.clamp(min=0)]
        ours = segments[:, t_T, None]
        seen = seen & ((theirs[:, None] == ours) & (ours >= 0))[:, None]
    used = seen.any(2).unflatten(1, (-1, group)).any(2)
    dtype = torch.promote_types(keys.dtype, torch.float32)
    hidden = ~used[..., None]  # what such rows hold, NaN included, must reach nothing
    k_BHRD, v_BHRD = (x.to(dtype).masked_fill(hidden, 0).repeat_interleave(group, dim=1) for x in (keys, values))
    q_BHTD = q.to(keys.dtype).to(dtype)
    logits = (q.shape[3] ** -0.5 if scale is None else scale) * (q_BHTD @ k_BHRD.mT)
    x = logits
    distance = offset_TR.abs().to(torch.float64)
    if decays is not None:
        x = x * torch.exp(-decays[:, None, None] * distance).to(dtype)
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    if slopes is not None:
        x = x - (slopes[:, None, None] * distance).to(dtype)
    blind = ~seen.any(-1, keepdim=True)
    weights = x.masked_fill(~seen, -torch.inf).masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
    return weights @ v_BHRD, logits, seen.expand_as(logits)


def _triton(*args: Any) -> Any:
    return import_module("longshort.ops.triton.decode_launch").decode(*args)


def _fake(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return results_of(q, rest[-1])


for _name, _impl in (("plain_decode", _plain), ("triton_decode", _triton)):
    _library.define(f"{_name}{_SCHEMA}")
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _impl, _device)
    torch.library.register_fake(f"longshort::{_name}", _fake, lib=_library)
