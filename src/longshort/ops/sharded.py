"""The op over a sequence whose positions are spread over several processes: context parallelism.

Each rank holds T neighbouring positions. Local heads need no more than a halo, the last window - 1 keys and values of
the rank before. Keys and values of the few global heads are gathered, and their queries shared out so that all ranks
have equally much causal work. `attention` computes the rest: it takes more keys than queries, with the queries last.

Shapes: B batch, H query heads, H_kv key/value heads, N ranks, T positions of each, D head dimension.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from longshort.heads import HeadPlan
from longshort.ops.api import (
    AttentionResult,
    LogitStats,
    as_autocast,
    attention,
    check_options,
    check_sinks,
    check_tensors,
)
from longshort.ops.collectives import exchanged, gathered, largest
from longshort.ops.heads import of_heads
from longshort.ops.options import Stats, extremes_of
from longshort.ops.shares import Roles, Shard, check_firsts, check_shard
from longshort.ops.smoothing import Smoothing, smooth_keys_of, smooth_values


def sharded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: HeadPlan,
    *,
    group: dist.ProcessGroup,
    scale: float | None = None,
    softcap: float | None = None,
    segments: Tensor | None = None,
    sinks: Tensor | None = None,
    smoothing: Smoothing | None = None,
    stats: Stats = False,
    lse: bool = False,
    backend: str = "auto",
) -> AttentionResult:
    """Causal `attention` of a sequence of N T positions, of which each rank of `group` holds T, in order.

    Every rank calls it with tensors of the same shapes and gets the rows of its own queries; statistics are those of
    all ranks. Gradients of q, k and v are those of one process that holds the whole sequence. That of `sinks` is this
    rank's part: sum it over the group, as those of all parameters.

    Args:
        q: (B, H, T, D).
        k, v: (B, H_kv, T, D).
        plan: reach of each query head. A window must not reach past the rank before: see `shares.largest_group`.
        group: the processes that share the sequence.
        segments: (B, N T) integers, those of the whole sequence; not with streaming heads.
        lse: return the lse too, for which more is sent; it is empty, (0,), if not.
        sinks, scale, softcap, smoothing, stats, backend: as in `attention`.
    """
    q, k, v = as_autocast(q, k, v)
    check_tensors(q, k, v)
    check_options(q, k, plan, scale, softcap, None)
    check_sinks(q, sinks)
    extremes = extremes_of(stats)
    shard = Shard(dist.get_rank(group), dist.get_world_size(group), q.shape[2])
    _check_shapes(q, k, shard, segments)
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "stats": stats, "backend": backend}
    if shard.size == 1:
        return attention(q, k, v, plan, segments=segments, sinks=sinks, smoothing=smoothing, **options)
    check_shard(plan, k.shape[1], shard, smoothing)
    if smoothing is not None:
        k, v = smoothed_shard(k, v, plan, smoothing, segments, group)
    check_firsts(plan, k.shape[1], shard.total, segments=segments is not None)
    roles = Roles.of(plan, k.shape[1], shard.total)
    arrived = Arrived(  # what is sent first travels while the heads after it are computed
        _gathered_keys(k, v, roles, group) if roles.far else None,
        _shared_out(of_heads(q, roles.far), shard, group) if roles.far else None,
        _with_halo(k, v, roles, shard, group) if roles.near else None,
    )
    results = rank_work(q, arrived, plan, roles, shard, segments=segments, sinks=sinks, **options)
    out = _own_rows([(heads, result.out) for heads, result in results], roles, shard, group)
    sums = q.new_empty(0, dtype=torch.promote_types(q.dtype, torch.float32))
    if lse:
        sums = _own_rows([(heads, result.lse) for heads, result in results], roles, shard, group)
    return AttentionResult(out, sums, _over_ranks(results, extremes, group) if extremes else None)


class Arrived(NamedTuple):
    """What a rank has once all was sent: everything that its work depends on besides its own queries."""

    far: tuple[Tensor, Tensor] | None
    """Keys and values (B, far KV heads, N T, D) of the whole sequence."""
    queries: tuple[Tensor, Tensor] | None
    """(B, far heads, half of T, D): the first half of its own queries, and the second half of its mirror's."""
    near: tuple[Tensor, Tensor] | None
    """Keys and values (B, near KV heads, first + back + T, D), the halo before its own; on rank 0 only its own."""


def rank_work(
    q: Tensor,
    arrived: Arrived,
    plan: HeadPlan,
    roles: Roles,
    shard: Shard,
    *,
    segments: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> list[tuple[list[int], AttentionResult]]:
    """What one rank computes between what it receives and what it sends back: no communication in here.

    Results with their heads: near, inner, and for the far heads one for each of the two halves in `arrived.queries`.
    """

    def attend(q: Tensor, keys: tuple[Tensor, Tensor], heads: list[int], start: int, end: int) -> None:
        ids = None if segments is None else segments[:, start:end]
        own = None if sinks is None else of_heads(sinks[None], heads)[0]
        results.append((heads, attention(q, *keys, plan.of_heads(heads), segments=ids, sinks=own, **options)))

    results: list[tuple[list[int], AttentionResult]] = []
    end = shard.start + shard.length
    if arrived.near is not None:
        start = shard.start - roles.back if shard.rank else 0  # there are no segments with first keys
        attend(of_heads(q, roles.near), arrived.near, roles.near, start, end)
    if arrived.far is not None and roles.inner:
        back = max(plan.windows[head] or 1 for head in roles.inner) - 1
        streams = plan.firsts is not None and any(plan.firsts[head] for head in roles.inner)
        start = 0 if streams else max(0, shard.start - back)
        keys = _shared_keys(arrived.far, roles, roles.inner, start, end)
        attend(of_heads(q, roles.inner), keys, roles.inner, start, end)
    if arrived.far is not None and arrived.queries is not None:
        for queries, last in zip(arrived.queries, shard.ends, strict=True):
            keys = _shared_keys(arrived.far, roles, roles.far, 0, last)
            attend(queries, keys, roles.far, 0, last)
    return results


def _shared_keys(
    kv: tuple[Tensor, Tensor], roles: Roles, heads: list[int], start: int, end: int
) -> tuple[Tensor, Tensor]:
    """Keys and values from `start` to `end`; one each for query heads that do not fill the groups of their KV heads."""
    k, v = (x[:, :, start:end] for x in kv)
    if len(heads) == len(roles.far) + len(roles.inner):
        return k, v
    group = (len(roles.far) + len(roles.inner)) // len(roles.far_kv)
    own = [roles.far_kv.index(head // group) for head in heads]
    return of_heads(k, own), of_heads(v, own)


def _gathered_keys(k: Tensor, v: Tensor, roles: Roles, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Keys and values of the global heads over the whole sequence: views of what is gathered, positions first."""
    parts = [of_heads(x, roles.far_kv).permute(2, 0, 1, 3) for x in (k, v)]
    all_k, all_v = gathered(torch.stack(parts, dim=1), group).unbind(1)
    return all_k.permute(1, 2, 0, 3), all_v.permute(1, 2, 0, 3)


def _shared_out(q: Tensor, shard: Shard, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """The first half of the queries, and the second half of the mirror's."""
    mine, theirs = q.split(shard.halves, dim=2)
    return mine, _swapped(theirs, shard, group)


def _swapped(x: Tensor, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """The mirror's x, of the same shape."""
    return exchanged({shard.mirror: x}, {shard.mirror: x.numel()}, x, group).view(x.shape)


def _own_rows(parts: list[tuple[list[int], Tensor]], roles: Roles, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """(B, H, T, ...) of what `rank_work` computed: the second half of global queries comes back from the mirror."""
    if roles.far:
        (_, mine), (_, theirs) = parts[-2:]
        parts = [*parts[:-2], (roles.far, torch.cat((mine, _swapped(theirs, shard, group)), dim=2))]
    return _in_order(parts, 1)


def _with_halo(k: Tensor, v: Tensor, roles: Roles, shard: Shard, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Keys and values of the local heads with those before them: of the sequence's start, then of the rank before.

    Heads with smaller windows than others have zeros where the others' halos begin, which they do not see.
    """
    k, v = of_heads(k, roles.near_kv), of_heads(v, roles.near_kv)
    if not roles.back and not roles.first:
        return k, v
    firsts = [_flat_pair(k, v, part.heads, slice(part.first)) for part in roles.pieces]
    backs = [_flat_pair(k, v, part.heads, slice(shard.length - part.back, None)) for part in roles.pieces]
    sent: dict[int, Tensor] = {}
    for rank in range(1, shard.size):
        parts = [*(firsts if shard.rank == 0 else ()), *(backs if shard.rank == rank - 1 else ())]
        if parts:
            sent[rank] = torch.cat(parts)
    sizes = [len(part) if shard.rank else 0 for part in (*firsts, *backs)]
    counts = {0: sum(sizes[: len(firsts)])}
    if shard.rank:
        counts[shard.rank - 1] = counts.get(shard.rank - 1, 0) + sum(sizes[len(firsts) :])
    received = exchanged(sent, counts, k, group).split(sizes)
    columns = []
    for part, first, back in zip(roles.pieces, received[: len(firsts)], received[len(firsts) :], strict=True):
        shape = (2, k.shape[0], len(part.heads), -1, k.shape[3])
        if shard.rank:
            first = F.pad(first.view(shape), (0, 0, 0, roles.first - part.first))
            back = F.pad(back.view(shape), (0, 0, roles.back - part.back, 0))
        columns.append((part.heads, torch.cat((first.view(shape), back.view(shape)), dim=3)))
    halo_k, halo_v = _in_order(columns, 2).unbind()
    return torch.cat((halo_k, k), dim=2), torch.cat((halo_v, v), dim=2)


def _flat_pair(k: Tensor, v: Tensor, heads: list[int], positions: slice) -> Tensor:
    return torch.stack([of_heads(x, heads)[:, :, positions] for x in (k, v)]).flatten()


def smoothed_shard(
    k: Tensor,
    v: Tensor,
    plan: HeadPlan,
    smoothing: Smoothing,
    segments: Tensor | None,
    group: dist.ProcessGroup,
) -> tuple[Tensor, Tensor]:
    """Keys and values (B, H_kv, T, D) of a rank's own positions, the values or the keys smoothed as `attention` does.

    The neighbours' are sent for them. Smoothed keys are H heads where those of a group decay differently.
    """
    smoothing.check(causal=True)
    shard = Shard(dist.get_rank(group), dist.get_world_size(group), k.shape[2])
    check_shard(plan, k.shape[1], shard, smoothing)
    before, after = -smoothing.offsets[0], smoothing.offsets[-1]
    before, after = before if shard.rank else 0, 0 if shard.is_last else after
    ids = None if segments is None else segments[:, shard.start - before : shard.start + shard.length + after]
    own = slice(before, before + shard.length)
    if smoothing.stage == "after":
        return k, smooth_values(_with_neighbours(v, smoothing, shard, group), smoothing, ids)[:, :, own]
    why = smoothing.without_keys(causal=True, decays=plan.decays)
    if why is not None:
        raise ValueError(f'smoothing_stage must be "after" in a group, got "before": {why}')
    k, v = smooth_keys_of(_with_neighbours(k, smoothing, shard, group), v, smoothing, plan.decays, ids)
    return k[:, :, own], v


def _with_neighbours(x: Tensor, smoothing: Smoothing, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """x with the positions before and after it that smoothing takes in, as far as the sequence has them."""
    before, after = -smoothing.offsets[0], smoothing.offsets[-1]
    sent, counts = {}, {}
    row = x[:, :, :1].numel()
    if shard.rank:
        sent[shard.rank - 1], counts[shard.rank - 1] = x[:, :, :after], before * row
    if not shard.is_last:
        sent[shard.rank + 1], counts[shard.rank + 1] = x[:, :, shard.length - before :], after * row
    received = exchanged(sent, counts, x, group)
    batch, heads, _, dim = x.shape
    earlier, later = received.split([before * row if shard.rank else 0, 0 if shard.is_last else after * row])
    return torch.cat((earlier.view(batch, heads, -1, dim), x, later.view(batch, heads, -1, dim)), dim=2)


def _in_order(parts: list[tuple[list[int], Tensor]], dim: int) -> Tensor:
    """Parts with the numbers of their heads (no part is without) as one tensor, heads in order along `dim`."""
    parts = sorted(parts, key=lambda part: part[0][0])
    order = [head for heads, _ in parts for head in heads]
    joined = parts[0][1] if len(parts) == 1 else torch.cat([x for _, x in parts], dim=dim)
    if order == sorted(order):
        return joined
    places = [order.index(head) for head in sorted(order)]
    return joined.index_select(dim, torch.tensor(places, device=joined.device))


def _over_ranks(
    results: list[tuple[list[int], AttentionResult]], extremes: int, group: dist.ProcessGroup
) -> LogitStats:
    """The extremes over all results and ranks: one reduction of the largest and of minus the smallest."""
    by_heads: dict[tuple[int, ...], Tensor] = {}
    for heads, result in results:
        assert result.stats is not None
        mine = torch.stack([result.stats.max, *(() if result.stats.min is None else (-result.stats.min,))])
        key = tuple(heads)
        by_heads[key] = torch.maximum(by_heads[key], mine) if key in by_heads else mine
    found = largest(_in_order([(list(heads), x) for heads, x in by_heads.items()], 1), group)
    return LogitStats(found[0], -found[1] if extremes == 2 else None)


def _check_shapes(q: Tensor, k: Tensor, shard: Shard, segments: Tensor | None) -> None:
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"k must have the positions of q, T={q.shape[2]}, in a group, got S={k.shape[2]}")
    if segments is None:
        return
    whole = (q.shape[0], shard.total)
    if not isinstance(segments, Tensor) or segments.shape != whole:
        got = tuple(segments.shape) if isinstance(segments, Tensor) else type(segments).__name__
        raise ValueError(f"segments must be those of the whole sequence, (batch, ranks x T) = {whole}, got {got}")
