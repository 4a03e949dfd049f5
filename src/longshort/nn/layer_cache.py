"""The cache of one attention layer: a pool of slots for each distinct reach of its KV heads.

Slots are written in place; what a chunk of tokens sees is read in order, as a view where slots are in order and as a
small copy where the ring wraps. Masks, padding and statistics are the op's: each pool is one call of it, with more keys
than queries. With smoothing, pools hold smoothed values, or smoothed keys where it comes before the softmax; a small
ring beside them has the newest raw ones, which those of the next tokens are averaged with.

Shapes: B batch, H query heads, H_kv key/value heads, T new tokens, S cached and new ones, D head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longshort.heads import HeadPlan, narrower
from longshort.nn.pool import Fetch, FirstRows, Pool, Raw, Rows
from longshort.ops import LogitStats, Smoothing, attention
from longshort.ops.blocked.fused import attend_last
from longshort.ops.heads import as_slice
from longshort.ops.options import Stats
from longshort.ops.smoothing import held_heads
from longshort.reach import LayerReach

FIRST_ROWS = 64
"""Slots of a pool that grows, to begin with; it doubles from there."""

_LEAN_BACKENDS = ("auto", "blocked")


class CachedAttention(NamedTuple):
    """What `LSLayerCache.attend` returns."""

    out: Tensor
    """(B, H, T, D)."""
    stats: LogitStats | None
    """Extremes of the logits per head, of these queries; None with stats=False."""


class CacheLayer(ABC):
    """One attention layer of a cache: its pools, and what can be done with them by one that knows what they hold."""

    def __init__(
        self,
        plan: HeadPlan | LayerReach,
        n_kv_heads: int,
        head_dim: int,
        *,
        batch_size: int,
        max_length: int | None,
        rollback: int,
        dtype: torch.dtype,
        device: torch.device | str,
        smoothing: Smoothing | None = None,
    ) -> None:
        self.reach = LayerReach(plan=plan) if isinstance(plan, HeadPlan) else plan
        self.plan = plan = self.reach.plan
        self.n_kv_heads, self.head_dim, self.max_length = n_kv_heads, head_dim, max_length
        self.smoothing = smoothing
        self.held_heads = held_heads(plan, n_kv_heads, smoothing)
        self.pools: list[Pool] = []
        check_streaming(plan)
        reaches = list(zip(plan.kv_windows(self.held_heads), plan.kv_firsts(self.held_heads), strict=True))
        for window, first in dict.fromkeys(reaches):
            kv_heads = [head for head, reach in enumerate(reaches) if reach == (window, first)]
            group = plan.n_heads // self.held_heads
            heads = [kv_head * group + i for kv_head in kv_heads for i in range(group)]
            limit = narrower(None if window is None else window + rollback, max_length)
            rows = narrower(limit, None if max_length is not None else FIRST_ROWS)
            shape = (batch_size, len(kv_heads), rows or FIRST_ROWS, head_dim)
            k, v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
            kept = None
            if first:
                shape = (batch_size, len(kv_heads), narrower(first, max_length) or 0, head_dim)
                rows_of_first = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
                kept = FirstRows(None, first, *rows_of_first)
            self.pools.append(
                Pool(window, limit, k, v, plan.of_heads(heads), as_slice(heads), as_slice(kv_heads), kept)
            )
        self.raw: Raw | None = None
        if smoothing is not None:
            rows = narrower(smoothing.width + rollback, max_length)
            shape = (batch_size, n_kv_heads, rows or 0, head_dim)
            self.raw = Raw.empty(smoothing, plan.decays, rows or 0, shape, dtype=dtype, device=device)

    @property
    def stores(self) -> list[Rows]:
        """Everything that has slots."""
        kept = [pool.kept for pool in self.pools if pool.kept is not None]
        return [*self.pools, *kept] if self.raw is None else [*self.pools, *kept, self.raw]

    def check_place(self, batch_size: int, new: int, held: int) -> None:
        """Raise where `new` more tokens for each of `batch_size` sequences have no room beside the `held` ones."""
        rows = self.pools[0].k.shape[0]
        if batch_size != rows:
            raise ValueError(f"cache must have the batch size of the input, {batch_size}, got {rows}")
        if self.max_length is not None and held + new > self.max_length:
            raise ValueError(f"cache has max_length {self.max_length} and holds {held}; got {new} more")

    def attend_chunk(
        self,
        start: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        softcap: float | None,
        segments: Tensor | None,
        sinks: Tensor | None,
        stats: Stats,
        backend: str,
    ) -> CachedAttention:
        """Append k and v, smoothed if they are to be, at positions `start` and after, and attend; nothing is counted.

        `segments` (B, S) covers the cached positions and the new ones.
        """
        stop = start + k.shape[2]
        out = torch.empty_like(q) if len(self.pools) > 1 else q
        largest = torch.empty(self.plan.n_heads, dtype=torch.float32, device=q.device)
        smallest = torch.empty_like(largest) if stats is True else None
        for pool in self.pools:
            pool.reserve(stop)
            keys, values = pool.extend(start, k[:, pool.kv_heads], v[:, pool.kv_heads])
            queries = q[:, pool.heads].to(keys.dtype)
            ids = None if segments is None else segments[:, stop - keys.shape[2] :]
            if pool.kept is not None:
                keys, values, ids = _with_first_keys(pool, start, keys, values, k, v, ids, segments)
            options: dict[str, Any] = {"softcap": softcap, "segments": ids, "sinks": pool.sinks(sinks)}
            result = attention(queries, keys, values, pool.plan, **options, stats=stats, backend=backend)
            if len(self.pools) == 1:
                out = result.out.to(q.dtype)
            else:
                out[:, pool.heads] = result.out.to(q.dtype)
            if result.stats is not None:
                largest[pool.heads] = result.stats.max
                if smallest is not None and result.stats.min is not None:
                    smallest[pool.heads] = result.stats.min
        return CachedAttention(out, LogitStats(largest, smallest) if stats else None)

    def fill(self, length: int, k: Tensor, v: Tensor, raw: Tensor, fetch: Fetch) -> None:
        """Take in a whole sequence that is shared, of which this process has the shards k, v and raw (B, heads, T, D).

        Args:
            k, v: one of them smoothed if they are to be.
            raw: what that one was before.
            fetch: gives rows of the whole sequence.
        """
        self.check_place(k.shape[0], length, 0)
        for store in self.stores:
            store.follow(k.device)
        for pool in self.pools:
            own = k[:, pool.kv_heads], v[:, pool.kv_heads]
            pool.fill(length, *own, fetch)
            if pool.kept is not None:
                pool.kept.fill(length, *own, fetch)
        if self.raw is not None:
            self.raw.fill(length, raw[..., :0], raw, fetch)

    @abstractmethod
    def next_positions(self, new: int) -> Tensor:
        """(T,) positions of the next tokens."""

    @abstractmethod
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        softcap: float | None = None,
        segments: Tensor | None = None,
        sinks: Tensor | None = None,
        stats: Stats = False,
        backend: str = "auto",
    ) -> CachedAttention:
        """Append k and v (B, H_kv, T, D) and attend from q (B, H, T, D) over all that each head sees.

        `segments` (B, S) covers the cached positions and the new ones; `sinks` (H,) are as in `attention`.
        """


class LSLayerCache(CacheLayer):
    """The cache of one attention layer, which counts on the host; `LSCache` makes them."""

    def __init__(self, plan: HeadPlan | LayerReach, n_kv_heads: int, head_dim: int, **sizes: Any) -> None:
        super().__init__(plan, n_kv_heads, head_dim, **sizes)
        self.length = 0
        """Positions held."""
        self.written = 0
        """One past the last position ever written: what a crop leaves behind has overwritten older slots. A ring that
        was resized counts as if it had had its present size all along."""
        alike = all(_sees_all_of(pool) for pool in self.pools)
        self._sees_alike = alike and self.plan.decays is None and self.plan.slopes is None

    def check(self, batch_size: int, new: int) -> None:
        """Raise, before anything is written, if `new` more tokens for `batch_size` sequences each have no room."""
        self.check_place(batch_size, new, self.length)

    def fill(self, length: int, k: Tensor, v: Tensor, raw: Tensor, fetch: Fetch) -> None:
        super().fill(length, k, v, raw, fetch)
        self.length, self.written = length, max(self.written, length)

    def next_positions(self, new: int) -> Tensor:
        return torch.arange(self.length, self.length + new, device=self.pools[0].k.device)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        softcap: float | None = None,
        segments: Tensor | None = None,
        sinks: Tensor | None = None,
        stats: Stats = False,
        backend: str = "auto",
    ) -> CachedAttention:
        self.check(k.shape[0], k.shape[2])
        for store in self.stores:
            store.follow(k.device)
        if self.raw is not None:
            k, v = self.raw.smoothed(self.length, k, v, segments)
        if softcap is None and segments is None and not stats and backend in _LEAN_BACKENDS and self._is_lean(q):
            return CachedAttention(self._attend_last(q, k, v, sinks), None)
        start, stop = self.length, self.length + k.shape[2]
        options: dict[str, Any] = {"softcap": softcap, "segments": segments, "sinks": sinks}
        attended = self.attend_chunk(start, q, k, v, **options, stats=stats, backend=backend)
        self.length, self.written = stop, max(self.written, stop)
        return attended

    def _is_lean(self, q: Tensor) -> bool:
        """One token on a CPU, by heads that all see every slot of their pool: the kernel alone does it then."""
        one_on_cpu = q.shape[2] == 1 and q.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        return one_on_cpu and self._sees_alike and q.numel() > 0

    def _attend_last(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        position = self.length
        out = torch.empty_like(q)
        for pool in self.pools:
            pool.reserve(position + 1)
            keys, values = pool.append(position, k[:, pool.kv_heads], v[:, pool.kv_heads])
            if pool.kept is not None:
                keys, values, _ = _with_first_keys(pool, position, keys, values, k, v, None, None)
            queries = q[:, pool.heads].to(keys.dtype)
            out[:, pool.heads] = attend_last(queries, keys, values, pool.sinks(sinks)).to(q.dtype)
        self.length, self.written = position + 1, max(self.written, position + 1)
        return out


def _with_first_keys(
    pool: Pool,
    start: int,
    keys: Tensor,
    values: Tensor,
    k: Tensor,
    v: Tensor,
    ids: Tensor | None,
    segments: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the new tokens k and v see of a pool, with the first keys before it, as if nothing had been in between: to
    the op, windows end at the queries, and first keys are the first. The new tokens' own are kept.
    """
    assert pool.kept is not None
    stop = start + k.shape[2]
    if stop > keys.shape[2]:
        first_keys, first_values, first_ids = pool.kept.before(start, stop - keys.shape[2], segments)
        keys, values = torch.cat((first_keys, keys), dim=2), torch.cat((first_values, values), dim=2)
        if ids is not None and first_ids is not None:
            ids = torch.cat((first_ids, ids), dim=1)
    pool.kept.keep(start, k[:, pool.kv_heads], v[:, pool.kv_heads], segments)
    return keys, values, ids


def _sees_all_of(pool: Pool) -> bool:
    """Whether all query heads of a pool see all of it."""
    first = None if pool.kept is None else (pool.kept.limit,) * pool.plan.n_heads
    return set(pool.plan.windows) == {pool.window} and pool.plan.firsts == first


def check_streaming(plan: HeadPlan) -> None:
    """First keys are cached without how far back they are."""
    if plan.firsts is not None and not (plan.decays is None and plan.slopes is None):
        raise ValueError(
            "a cache serves first keys without decays and slopes, which need the distance to them, got "
            f"{'decays' if plan.slopes is None else 'slopes'}: run whole sequences without a cache"
        )


def check_smoothing(smoothing: Smoothing | None) -> None:
    """A cached token is final: nothing that comes later may change what is seen of it."""
    if not isinstance(smoothing, Smoothing | None):
        raise ValueError(f"smoothing must be None or a Smoothing, got {smoothing!r}: Smoothing(width=...)")
    if smoothing is None or smoothing.side == "causal":
        return
    raise ValueError(
        f"a cache serves smoothing of side 'causal', got side {smoothing.side!r}, in which later tokens change earlier "
        "ones: run the whole sequence without a cache"
    )
