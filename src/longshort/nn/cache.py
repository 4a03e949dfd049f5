"""The key/value cache of decoding: global heads keep everything, local heads a ring of the rows they can still see.

A cache has one `LayerCache` a layer, and what all of them share: the length, segments and positions of its tokens.
Calls that would leave it half changed are checked before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.nn.layer_cache import FIRST_ROWS, LayerCache, check_smoothing, smaller
from longshort.ops import Smoothing


class LSCache:
    """Keys and values of every layer, for decoding token by token; `GPT.new_cache` makes one that fits a model.

    A forward pass with `cache=` appends its tokens, one or many, and sees the cached ones. All rows of a batch advance
    together; rows of different lengths are padded on the left by negative `segments`.

    Args:
        plans: reach of the query heads, one plan a layer.
        head_dim: features per head.
        n_kv_heads: key/value heads a layer; as many as query heads if None.
        batch_size: rows.
        max_length: allocate for so many positions at once and refuse more; if None, pools grow by doubling.
        rollback: tokens that `crop` can take back; a local head keeps window + rollback rows.
        smoothing: of the layers; causal, and after the softmax. The newest width + rollback raw values are kept then.

    >>> from longshort import GPT, GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> tokens = torch.randint(256, (2, 100))
    >>> cache = model.new_cache(batch_size=2)
    >>> parts = [model(part, cache=cache).logits for part in tokens.split((60, 1, 39), dim=1)]
    >>> cache.length, torch.allclose(torch.cat(parts, dim=1), model(tokens).logits, atol=1e-5)
    (100, True)
    """

    def __init__(
        self,
        plans: Sequence[HeadPlan],
        *,
        head_dim: int,
        n_kv_heads: int | None = None,
        batch_size: int = 1,
        max_length: int | None = None,
        rollback: int = 32,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        smoothing: Smoothing | None = None,
    ) -> None:
        least = {"head_dim": (head_dim, 1), "batch_size": (batch_size, 0), "rollback": (rollback, 0)}
        if max_length is not None:
            least["max_length"] = (max_length, 1)
        for name, (value, bound) in least.items():
            _check_count(name, value, bound)
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        if not plans:
            raise ValueError("plans must name at least one layer, got none")
        check_smoothing(smoothing)
        self.batch_size, self.max_length, self.rollback = batch_size, max_length, rollback
        self.recording = False
        """See `activate_past_recording`."""
        self.writing = False
        """A forward pass is under way; still True where one failed before its end."""
        self._spare_rows, self._cropped_at = rollback, 0
        self.device = torch.device(device)
        sizes: dict[str, Any] = {"batch_size": batch_size, "max_length": max_length, "rollback": rollback}
        sizes |= {"dtype": dtype, "device": device, "smoothing": smoothing}
        self.layers = [self._layer(plan, n_kv_heads or plan.n_heads, head_dim, sizes) for plan in plans]
        self._segments: Tensor | None = None
        self._positions: Tensor | None = None

    def _layer(self, plan: HeadPlan, n_kv_heads: int, head_dim: int, sizes: dict[str, Any]) -> LayerCache:
        return LayerCache(plan, n_kv_heads, head_dim, **sizes)

    @property
    def length(self) -> int:
        """Positions held, padding included."""
        return self.layers[0].length

    @property
    def known_length(self) -> int | None:
        """The length, or None where only the device knows it: see `StaticCache`."""
        return self.length

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held."""
        pools = [x for layer in self.layers for store in layer.stores for x in (store.k, store.v)]
        tables = [x for x in (self._segments, self._positions) if x is not None]
        return sum(x.nbytes for x in (*pools, *tables))

    def check(self, batch_size: int, new: int) -> None:
        """As `LayerCache.check`, and that the last forward pass came to its end and took in all layers."""
        self._check_whole()
        if len({layer.length for layer in self.layers}) > 1:
            raise ValueError("cache must have layers of one length, got some that were given tokens on their own")
        self.layers[0].check(batch_size, new)

    def next_positions(self, new: int) -> Tensor:
        """(T,), or (B, T) where positions were given before: the count goes on from the last cached token."""
        steps = torch.arange(new, device=self.device)
        if self._positions is None or self.length == 0:
            return self.length + steps
        return self._positions[:, self.length - 1 : self.length] + 1 + steps

    def record(self, new: int, segments: Tensor | None, positions: Tensor | None) -> Tensor | None:
        """Note the segments (B, T) and given positions of new tokens; returns the segments (B, S) so far, if any.

        Tokens without segments go on with the segment of the last cached one, or with 0.
        """
        self.writing = True
        if self.recording and self.length + new - self._cropped_at > self._spare_rows:
            self._resize_rings(max(2 * self._spare_rows, self.length + new - self._cropped_at))
        if self._positions is not None or positions is not None:
            given = self.next_positions(new) if positions is None else positions
            before = torch.arange(self.length, device=self.device)
            self._positions = self._noted(self._positions, before, given)
        if self._segments is None and segments is None:
            return None
        if segments is None:
            segments = torch.zeros(self.batch_size, new, dtype=torch.long, device=self.device)
            if self._segments is not None and self.length:
                segments = segments + self._segments[:, self.length - 1 : self.length]
        before = torch.zeros(self.length, dtype=torch.long, device=self.device)
        self._segments = self._noted(self._segments, before, segments)
        return self._segments[:, : self.length + new]

    def latest(self, table: Tensor, new: int) -> Tensor:
        """Of a table (B, S) over all positions, the columns (B, T) of the new tokens, which are recorded already."""
        return table[:, self.length : self.length + new]

    def advance(self, new: int) -> None:
        """Called when every layer has taken in the new tokens; here each layer counts for itself."""
        self.writing = False

    def crop(self, n: int) -> None:
        """Take back the last n tokens, as if they had never been seen."""
        self._check_whole()
        spare = self.length
        if any(store.window is not None for layer in self.layers for store in layer.stores):
            spare = min(spare, self._spare_rows - max(layer.written - layer.length for layer in self.layers))
        if not _is_integer(n):
            raise ValueError(f"n must be an integer, got {n!r}")
        if not 0 <= n <= spare:
            raise ValueError(
                f"n must be from 0 to {spare} (rollback {self._spare_rows}, {self.length} tokens held, less what was "
                f"taken back and not yet replaced), got {n}"
            )
        for layer in self.layers:
            layer.length -= n
        self._resize_rings(self.rollback)
        self._cropped_at = self.length

    def activate_past_recording(self) -> None:
        """From now on, all tokens since the last `crop` can be taken back, however many.

        Rings grow with what comes and shrink to window + rollback rows in `crop`, `crop(0)` included.

        >>> cache = LSCache([HeadPlan(windows=(4,))], head_dim=8, rollback=2)
        >>> cache.activate_past_recording()
        """
        self.recording, self._cropped_at = True, self.length

    def reset(self) -> None:
        """Forget everything; the memory is kept for the next use."""
        self._resize_rings(self.rollback)
        for layer in self.layers:
            layer.length = layer.written = 0
        self._cropped_at, self.writing = 0, False
        self._segments = self._positions = None

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes a copy of row rows[i], in place, as beam search wants it; rows (B,)."""
        _check_rows(rows)
        if rows.shape != (self.batch_size,):
            raise ValueError(f"rows must have shape ({self.batch_size},), got {tuple(rows.shape)}")
        self.select(rows)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch (n,), in this order; a row may come several times."""
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
        """Each row n times, the copies side by side, as `torch.repeat_interleave` does."""
        _check_count("n", n, 1)
        self.select(torch.arange(self.batch_size, device=self.device).repeat_interleave(n))

    def _check_whole(self) -> None:
        """A pass that failed has overwritten rows in some layers, and perhaps none of its tokens are counted yet."""
        if self.writing:
            raise ValueError("cache was left half-written by a forward pass that failed: call reset()")

    def _resize_rings(self, spare_rows: int) -> None:
        """Rings of window + spare_rows rows; what can be taken back is never more than the rows that are there."""
        extra = spare_rows - self._spare_rows
        if not extra:
            return
        for layer in self.layers:
            for store in layer.stores:
                if store.window is not None:
                    store.resize(smaller(store.window + spare_rows, self.max_length) or 0, layer.length)
            layer.written = max(layer.written + extra, layer.length)
        self._spare_rows = spare_rows

    def _noted(self, table: Tensor | None, before: Tensor, new: Tensor) -> Tensor:
        """A table (B, rows) of int64 with `new` written after `length` entries, which are `before` in a fresh one."""
        stop = self.length + new.shape[-1]
        if table is None or table.shape[1] < stop:
            rows = self.max_length or max(FIRST_ROWS, 2 * stop)
            grown = torch.empty(self.batch_size, rows, dtype=torch.long, device=self.device)
            grown[:, : self.length] = before if table is None else table[:, : self.length]
            table = grown
        table[:, self.length : stop] = new
        return table


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_count(name: str, value: int, least: int) -> None:
    if not _is_integer(value) or value < least:
        raise ValueError(f"{name} must be an integer and at least {least}, got {value!r}")


def _check_rows(rows: Tensor) -> None:
    if not isinstance(rows, Tensor):
        raise ValueError(f"rows must be an int64 tensor of shape (n,), got {type(rows).__name__}")
    if rows.ndim != 1 or rows.dtype != torch.long:
        raise ValueError(f"rows must be int64 of shape (n,), got {rows.dtype} of shape {tuple(rows.shape)}")


def _selected(x: Tensor, rows: Tensor) -> Tensor:
    chosen = x.index_select(0, rows.to(x.device))
    return x.copy_(chosen) if chosen.shape == x.shape else chosen
