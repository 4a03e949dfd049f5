"""What every decoding cache has: layers, segments and positions of its tokens, and a batch whose sequences can move.

`LSCache` grows and counts on the host; `LSStaticCache` has fixed shapes and counts on the device. Calls that would
leave one half changed are checked before anything is written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.nn.layer_cache import CacheLayer, check_smoothing
from longshort.nn.pool import FirstRows
from longshort.nn.positions import segment_positions
from longshort.numeric import check_count, is_integral
from longshort.ops import Smoothing
from longshort.reach import LayerReach


class KVCache(ABC):
    """A cache that a model can be given; its layers share the length, segments and positions of the tokens."""

    layers: Sequence[CacheLayer]

    def __init__(
        self,
        plans: Sequence[HeadPlan | LayerReach],
        *,
        head_dim: int,
        n_kv_heads: int | None,
        batch_size: int,
        max_length: int | None,
        rollback: int,
        dtype: torch.dtype,
        device: torch.device | str,
        smoothing: Smoothing | None,
    ) -> None:
        if not isinstance(plans, Sequence) or not all(isinstance(plan, HeadPlan | LayerReach) for plan in plans):
            found = [type(plan).__name__ for plan in plans] if isinstance(plans, Sequence) else type(plans).__name__
            raise ValueError(f"plans must be a sequence of HeadPlan or LayerReach, one per layer, got {found}")
        least = {"head_dim": (head_dim, 1), "batch_size": (batch_size, 0), "rollback": (rollback, 0)}
        if max_length is not None:
            least["max_length"] = (max_length, 1)
        if n_kv_heads is not None:
            least["n_kv_heads"] = (n_kv_heads, 1)
        for name, (value, bound) in least.items():
            check_count(name, value, bound)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        if not plans:
            raise ValueError("plans must name at least one layer, got none")
        check_smoothing(smoothing)
        self.batch_size, self.max_length, self.rollback = batch_size, max_length, rollback
        self.device = torch.device(device)
        self.recording = False
        """See `activate_past_recording`."""
        self.writing = False
        """A forward pass is under way; still True where one failed before its end."""
        self._segments: Tensor | None = None
        self._positions: Tensor | None = None

    @property
    @abstractmethod
    def length(self) -> int:
        """Positions held, padding included."""

    @property
    @abstractmethod
    def known_length(self) -> int | None:
        """The length, or None where only the device knows it."""

    @abstractmethod
    def check(self, batch_size: int, new: int) -> None:
        """Raise where `new` more tokens for each of `batch_size` sequences have no room, or the last pass failed."""

    @abstractmethod
    def next_positions(self, new: int) -> Tensor:
        """(T,), or (B, T) where positions were given before: the count continues from the last cached token."""

    @abstractmethod
    def record(self, new: int, segments: Tensor | None, positions: Tensor | None) -> Tensor | None:
        """Note the segments (B, T) and given positions of new tokens; returns the segments (B, S) so far, if any.

        Tokens without segments continue the segment of the last cached one, or take 0.
        """

    @abstractmethod
    def latest(self, table: Tensor, new: int) -> Tensor:
        """Of a table (B, S) over all positions, the columns (B, T) of the new tokens, which are recorded already."""

    def restarted(self, segments: Tensor, new: int) -> Tensor:
        """(B, T) positions of new tokens that count in each of the segments (B, S) from `record`.

        Where positions were given before, a segment that continues counts on from them.
        """
        counted = self.latest(segment_positions(segments), new)
        if self._positions is None:
            return counted
        continues = counted > torch.arange(new, device=self.device)
        positions = torch.where(continues, self.next_positions(new), counted)
        self.record(new, self.latest(segments, new), positions)
        return positions

    @abstractmethod
    def advance(self, new: int) -> None:
        """Count tokens that every layer has taken in."""

    @abstractmethod
    def crop(self, n: int) -> None:
        """Take back the last n tokens, as if they had never been seen."""

    @abstractmethod
    def activate_past_recording(self) -> None:
        """From now on, all tokens since the last `crop` can be taken back, however many."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything; the memory is kept for the next use."""

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held."""
        pools = [x for layer in self.layers for store in layer.stores for x in (store.k, store.v)]
        tables = [x for x in (self._segments, self._positions) if x is not None]
        return sum(x.nbytes for x in (*pools, *tables))

    def reorder(self, rows: Tensor) -> None:
        """Sequence i becomes a copy of sequence rows[i], in place, as beam search needs it; rows (B,)."""
        _check_rows(rows)
        if rows.shape != (self.batch_size,):
            raise ValueError(f"rows must have shape ({self.batch_size},), got {tuple(rows.shape)}")
        self.select(rows)

    def select(self, rows: Tensor) -> None:
        """Keep these sequences of the batch (n,), in this order; a sequence may come several times."""
        _check_rows(rows)
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.batch_size:
            raise ValueError(f"rows must be from 0 to {self.batch_size - 1}, got {rows.tolist()}")
        for layer in self.layers:
            for store in layer.stores:
                store.k, store.v = _selected(store.k, rows), _selected(store.v, rows)
        self._segments, self._positions = (
            None if table is None else _selected(table, rows) for table in (self._segments, self._positions)
        )
        self.batch_size = len(rows)

    def repeat(self, n: int) -> None:
        """Repeat each sequence n times, the copies side by side, as `torch.repeat_interleave` does."""
        check_count("n", n)
        self.select(torch.arange(self.batch_size, device=self.device).repeat_interleave(n))

    def _check_whole(self) -> None:
        """A pass that failed has overwritten slots in some layers, and perhaps none of its tokens are counted yet."""
        if self.writing:
            raise ValueError("cache was left half-written by a forward pass that failed: call reset()")

    def _check_crop(self, n: int, length: int, written: int, spare_rows: int) -> None:
        """Rings have `spare_rows` slots more than their windows, and were written up to position `written`."""
        spare = length
        if any(store.window is not None for layer in self.layers for store in layer.stores):
            spare = min(spare, spare_rows - (written - length))
        if not is_integral(n):
            raise ValueError(f"n must be an integer, got {n!r}")
        if not 0 <= n <= spare:
            raise ValueError(
                f"n must be from 0 to {spare} (rollback {spare_rows}, {length} tokens held, less what was "
                f"taken back and not yet replaced), got {n}"
            )
        if n and any(isinstance(store, FirstRows) for layer in self.layers for store in layer.stores):
            self._check_documents(length - n, length)

    def _check_documents(self, stays: int, length: int) -> None:
        """The first keys of a document replace those of the one before it, which cannot be had back."""
        if self._segments is None or not stays:
            return
        held, gone = self._segments[:, :stays], self._segments[:, stays:length]
        places = torch.arange(stays, device=held.device)
        last = held.gather(1, torch.where(held >= 0, places, 0).amax(1, keepdim=True))  # that is not padding
        if bool(((gone != last) & (gone >= 0) & (last >= 0)).any()):
            raise ValueError(
                "n must not take back the beginning of a document where heads see first keys besides a window, "
                f"got {length - stays} of {length} tokens"
            )


def _check_rows(rows: Tensor) -> None:
    if not isinstance(rows, Tensor):
        raise ValueError(f"rows must be an int64 tensor of shape (n,), got {type(rows).__name__}")
    if rows.ndim != 1 or rows.dtype != torch.long:
        raise ValueError(f"rows must be int64 of shape (n,), got {rows.dtype} of shape {tuple(rows.shape)}")


def _selected(x: Tensor, rows: Tensor) -> Tensor:
    chosen = x.index_select(0, rows.to(x.device))
    return x.copy_(chosen) if chosen.shape == x.shape else chosen
