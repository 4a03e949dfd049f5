"""The slots of a cache: pools that grow, rings that keep the newest, and the raw values that smoothing still needs.

Position p is in slot p modulo the number of slots. What the slots mean, and how many tokens are held, the cache knows.

Shapes: B batch, H_kv key/value heads, T new tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.ops.smoothing import Smoothing, smooth_values

Heads = slice | list[int]


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
class Pool(Rows):
    """Keys and values of the KV heads of one reach."""

    plan: HeadPlan
    """Of the query heads that read this pool."""
    heads: Heads
    kv_heads: Heads

    def sinks(self, of_layer: Tensor | None) -> Tensor | None:
        """Those (H,) of the query heads that read this pool, as the op takes them beside its keys."""
        return None if of_layer is None else of_layer[self.heads].to(torch.promote_types(self.k.dtype, torch.float32))


@dataclass
class RawValues(Rows):
    """The newest values (B, H_kv, slots, D) as they were before smoothing, in a ring; its keys have no features."""

    smoothing: Smoothing

    @classmethod
    def empty(cls, smoothing: Smoothing, limit: int, shape: tuple[int, int, int, int], **options: Any) -> RawValues:
        """No token held yet; `shape` is that of the values."""
        k, v = torch.empty(*shape[:3], 0, **options), torch.empty(shape, **options)
        return cls(window=smoothing.width, limit=limit, k=k, v=v, smoothing=smoothing)

    def smoothed(self, start: int, v: Tensor, segments: Tensor | None) -> Tensor:
        """Take in raw values (B, H_kv, T, D) from position `start` on and return them smoothed.

        `segments` (B, S) covers all positions up to the last of them.
        """
        stop = start + v.shape[2]
        self.reserve(stop)
        values = self.extend(start, v[..., :0], v)[1]
        ids = None if segments is None else segments[:, stop - values.shape[2] : stop]
        return smooth_values(values, self.smoothing, ids)[:, :, values.shape[2] - v.shape[2] :]

    def smoothed_step(self, held: Tensor, v: Tensor, segments: Tensor | None) -> Tensor:
        """As `smoothed`, for a length (1,) that only the device knows; `segments` has a column for every position."""
        past, new, ring = self.smoothing.width - 1, v.shape[2], self.v.shape[2]
        position = held + torch.arange(-past, new, device=held.device)
        self.v.index_copy_(2, position[past:] % ring, v.to(self.v.dtype))
        values, missing = self.v.index_select(2, position % ring), position < 0
        if segments is None:
            ids, values = None, values.masked_fill(missing[:, None], 0)
        else:
            ids = segments.index_select(1, position.clamp(min=0)).masked_fill(missing, -1)
        return smooth_values(values, self.smoothing, ids)[:, :, past:]


def _rows(start: int, stop: int, size: int) -> Iterator[slice]:
    """The slots of a ring that hold positions start to stop, at most `size`: one range, or two where it wraps."""
    first = start % size
    last = first + stop - start
    yield slice(first, min(last, size))
    if last > size:
        yield slice(0, last - size)
