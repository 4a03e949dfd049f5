"""The slots of a cache: pools that grow, rings that keep the newest, and what smoothing still needs unsmoothed.

Position p is in slot p modulo the number of slots. What the slots mean, and how many tokens are held, the cache knows.

Shapes: B batch, H_kv key/value heads, T new tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.ops.documents import ranks
from longshort.ops.heads import Heads
from longshort.ops.smoothing import Smoothing, smooth_keys_of, smooth_values

Fetch = Callable[[Tensor, int, int], Tensor]
"""Of one shard (B, heads, T, D) of a sequence, (B, heads, stop - start, D): positions start to stop of the whole."""


@dataclass
class Rows:
    """Keys and values (B, heads, slots, D); position p is in slot p modulo the number of slots."""

    window: int | None
    """Slots that a token sees, its own included; None: all."""
    limit: int | None
    """The largest number of slots; None: it grows without bound."""
    k: Tensor
    v: Tensor

    def reserve(self, length: int) -> None:
        """Make room for positions below `length`. A pool below its limit has never wrapped, so none moves."""
        rows = self.k.shape[2]
        if length <= rows or rows == self.limit:
            return
        wanted = max(2 * rows, length)
        wanted = wanted if self.limit is None else min(wanted, self.limit)
        for name in ("k", "v"):
            old: Tensor = getattr(self, name)
            new = old.new_empty((*old.shape[:2], wanted, old.shape[3]))
            new[:, :, :rows] = old
            setattr(self, name, new)

    def follow(self, device: torch.device) -> None:
        """Move to the layer's device: a model's layers may be spread over several devices, or offloaded."""
        if self.k.device != device:
            self.k, self.v = (
                torch.empty_like(x, device=device) if x.is_meta else x.to(device) for x in (self.k, self.v)
            )

    def resize(self, limit: int, length: int) -> None:
        """Give a ring that holds positions below `length` another limit; the newest slots move to their new places."""
        rows = self.k.shape[2]
        wrapped, self.limit = rows == self.limit, limit
        if rows == limit or (rows < limit and not wrapped):
            return
        first = max(0, length - min(rows, limit))
        for name in ("k", "v"):
            old: Tensor = getattr(self, name)
            new, kept = old.new_empty((*old.shape[:2], limit, old.shape[3])), self._read(old, first, length)
            for place in _rows(first, length, limit):
                new[:, :, place] = kept[:, :, : place.stop - place.start]
                kept = kept[:, :, place.stop - place.start :]
            setattr(self, name, new)

    def extend(self, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new tokens from position `start` on and return, in order, every slot that they may see, their own last.

        A chunk too long for the ring to hold beside its past is read before it overwrites that past.
        """
        new = k.shape[2]
        past = start if self.window is None else min(start, self.window - 1)
        fits = past + new <= self.k.shape[2]
        if fits:
            self._write(start, k, v)
            return self._read(self.k, start - past, start + new), self._read(self.v, start - past, start + new)
        seen = (
            torch.cat((self._read(self.k, start - past, start), k.to(self.k.dtype)), dim=2),
            torch.cat((self._read(self.v, start - past, start), v.to(self.v.dtype)), dim=2),
        )
        self._write(start, k, v)
        return seen

    def fill(self, length: int, k: Tensor, v: Tensor, fetch: Fetch) -> None:
        """Take in a whole sequence of `length` positions, of which k and v are shards; nothing was held before."""
        self.reserve(length)
        start = max(0, length - self.k.shape[2])
        self._write(start, fetch(k, start, length), fetch(v, start, length))

    def append(self, position: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write one new token and return, in any order, every slot that it may see, without a copy if that is all."""
        rows = self.k.shape[2]
        self.k.narrow(2, position % rows, 1).copy_(k)
        self.v.narrow(2, position % rows, 1).copy_(v)
        first = 0 if self.window is None else max(0, position + 1 - self.window)
        if position + 1 - first == rows:
            return self.k, self.v
        return self._read(self.k, first, position + 1), self._read(self.v, first, position + 1)

    def _read(self, pool: Tensor, start: int, stop: int) -> Tensor:
        parts = [pool[:, :, rows] for rows in _rows(start, stop, pool.shape[2])]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _write(self, start: int, k: Tensor, v: Tensor) -> None:
        stop = start + k.shape[2]
        first = max(start, stop - self.k.shape[2])
        taken = first - start
        for rows in _rows(first, stop, self.k.shape[2]):
            count = rows.stop - rows.start
            self.k[:, :, rows] = k[:, :, taken : taken + count]
            self.v[:, :, rows] = v[:, :, taken : taken + count]
            taken += count


@dataclass
class FirstRows(Rows):
    """The first keys and values (B, heads, slots, D) of the document that a sequence is in: its i-th key is in slot i.

    Documents follow each other: one that comes back after another has lost its first keys.
    """

    def before(self, start: int, near: int, segments: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and segments of the first keys of tokens from `start` on that come before position `near`.

        Those that a sequence does not have, or that are at `near` or after it, are padding.
        """
        if segments is None:
            count = min(near, self.k.shape[2])
            return self.k[:, :, :count], self.v[:, :, :count], None
        ids, at = self._document(segments[:, :start])
        return self.k, self.v, ids.expand_as(at).masked_fill((at < 0) | (at >= near), -1)

    def fill(self, length: int, k: Tensor, v: Tensor, fetch: Fetch) -> None:
        """As `Rows.fill`, for a sequence of one document."""
        count = min(length, self.k.shape[2])
        self._write(0, fetch(k, 0, count), fetch(v, 0, count))

    def keep(self, start: int, k: Tensor, v: Tensor, segments: Tensor | None) -> None:
        """Write those of the new tokens, from position `start` on, that are first keys of their document."""
        count = self.k.shape[2]
        if not k.shape[2]:
            return
        if segments is None:
            new = min(count, start + k.shape[2]) - start
            if new > 0:
                self.k[:, :, start : start + new], self.v[:, :, start : start + new] = k[:, :, :new], v[:, :, :new]
            return
        _, at = self._document(segments)
        given = (at >= start)[:, None, :, None]
        rows = (at - start).clamp(min=0)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        for held, new_rows in ((self.k, k), (self.v, v)):
            held.copy_(torch.where(given, new_rows.gather(2, rows).to(held.dtype), held))

    def _document(self, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Of the last token that is not padding: its segment (B, 1) and the positions (B, slots) of the first keys of
        its document, -1 where there are fewer."""
        count, places = self.k.shape[2], torch.arange(segments.shape[1], device=segments.device)
        last = torch.where(segments >= 0, places, 0).amax(1, keepdim=True)
        ids, rank = segments.gather(1, last), ranks(segments)
        low = (segments == ids) & (ids >= 0) & (rank < count)
        at = places.new_full((len(segments), count + 1), -1)
        at.scatter_(1, torch.where(low, rank, count), places.expand_as(rank))
        return ids, at[:, :count]


@dataclass
class Pool(Rows):
    """Keys and values of the KV heads of one reach."""

    plan: HeadPlan
    """Of the query heads that read this pool."""
    heads: Heads
    kv_heads: Heads
    kept: FirstRows | None = None
    """The first keys, where its heads see more of them than their windows hold."""

    def sinks(self, of_layer: Tensor | None) -> Tensor | None:
        """Those (H,) of the query heads that read this pool, as the op takes them beside its keys."""
        return None if of_layer is None else of_layer[self.heads].to(torch.promote_types(self.k.dtype, torch.float32))


@dataclass
class Raw(Rows):
    """The newest values (B, H_kv, slots, D), or keys, as they were before smoothing, in a ring.

    Both are held as values: the keys of this store have no features.
    """

    smoothing: Smoothing
    decays: tuple[float, ...] | None
    """Of the query heads."""

    @classmethod
    def empty(
        cls,
        smoothing: Smoothing,
        decays: tuple[float, ...] | None,
        limit: int,
        shape: tuple[int, int, int, int],
        **options: Any,
    ) -> Raw:
        """No token held yet; `shape` is that of the values."""
        k, v = torch.empty(*shape[:3], 0, **options), torch.empty(shape, **options)
        return cls(window=smoothing.width, limit=limit, k=k, v=v, smoothing=smoothing, decays=decays)

    def smoothed(self, start: int, k: Tensor, v: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
        """Take in keys and values (B, H_kv, T, D) from position `start` on; return those to attend to, one smoothed.

        `segments` (B, S) covers all positions up to the last of them.
        """
        x = v if self.smoothing.stage == "after" else k
        stop = start + x.shape[2]
        self.reserve(stop)
        held = self.extend(start, x[..., :0], x)[1]
        ids = None if segments is None else segments[:, stop - held.shape[2] : stop]
        return self._with_smoothed(held, ids, k, v)

    def smoothed_step(self, length: Tensor, k: Tensor, v: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `smoothed`, for a length (1,) that only the device knows; `segments` has a column for every position."""
        x = v if self.smoothing.stage == "after" else k
        past, new, ring = self.smoothing.width - 1, x.shape[2], self.v.shape[2]
        position = length + torch.arange(-past, new, device=length.device)
        self.v.index_copy_(2, position[past:] % ring, x.to(self.v.dtype))
        held, missing = self.v.index_select(2, position % ring), position < 0
        if segments is None:
            ids, held = None, held.masked_fill(missing[:, None], 0)
        else:
            ids = segments.index_select(1, position.clamp(min=0)).masked_fill(missing, -1)
        return self._with_smoothed(held, ids, k, v)

    def _with_smoothed(self, held: Tensor, ids: Tensor | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v with one of them smoothed: the last of what is held, whose segments are `ids`."""
        first = held.shape[2] - k.shape[2]
        if self.smoothing.stage == "after":
            return k, smooth_values(held, self.smoothing, ids)[:, :, first:]
        k, v = smooth_keys_of(held, v, self.smoothing, self.decays, ids)
        return k[:, :, first:], v


def _rows(start: int, stop: int, size: int) -> Iterator[slice]:
    """The slots of a ring that hold positions start to stop, at most `size`: one range, or two where it wraps."""
    first = start % size
    last = first + stop - start
    yield slice(first, min(last, size))
    if last > size:
        yield slice(0, last - size)
