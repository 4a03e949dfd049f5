"""The key/value cache of decoding: global heads keep everything, local heads a ring of the slots they can still see.

It has one `LSLayerCache` per layer, grows with what comes, and counts on the host; `LSStaticCache` is the other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longshort.heads import HeadPlan, narrower
from longshort.nn.kv_cache import KVCache
from longshort.nn.layer_cache import FIRST_ROWS, LSLayerCache
from longshort.ops import Smoothing
from longshort.reach import LayerReach


class LSCache(KVCache):
    """Keys and values of every layer, for decoding token by token; `GPT.new_cache` makes one that fits a model.

    A forward pass with `cache=` appends its tokens, one or many, and sees the cached ones. All sequences of a batch
    advance together; where their lengths differ, they are padded on the left by negative `segments`.

    Args:
        plans: reach of the query heads, one plan or `LayerReach` per layer.
        head_dim: features per head.
        n_kv_heads: key/value heads per layer; as many as query heads if None.
        batch_size: sequences.
        max_length: allocate for so many positions at once and refuse more; if None, pools grow by doubling.
        rollback: tokens that `crop` can take back; a local head keeps window + rollback slots.
        smoothing: of the layers; causal. The newest width + rollback raw values are kept then, or raw keys.

    >>> from longshort import GPT, GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> tokens = torch.randint(256, (2, 100))
    >>> cache = model.new_cache(batch_size=2)
    >>> parts = [model(part, cache=cache).logits for part in tokens.split((60, 1, 39), dim=1)]
    >>> cache.length, torch.allclose(torch.cat(parts, dim=1), model(tokens).logits, atol=1e-5)
    (100, True)
    """

    layers: list[LSLayerCache]

    def __init__(
        self,
        plans: Sequence[HeadPlan | LayerReach],
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
        sizes: dict[str, Any] = {"batch_size": batch_size, "max_length": max_length, "rollback": rollback}
        sizes |= {"dtype": dtype, "device": device, "smoothing": smoothing}
        super().__init__(plans, head_dim=head_dim, n_kv_heads=n_kv_heads, **sizes)
        self.layers = [LSLayerCache(plan, n_kv_heads or plan.n_heads, head_dim, **sizes) for plan in plans]
        self._spare_rows, self._cropped_at = rollback, 0

    @property
    def length(self) -> int:
        return self.layers[0].length

    @property
    def known_length(self) -> int | None:
        return self.length

    def check(self, batch_size: int, new: int) -> None:
        """As `KVCache.check`, and that the last forward pass took in all layers."""
        self._check_whole()
        if len({layer.length for layer in self.layers}) > 1:
            raise ValueError("cache must have layers of one length, got some that were given tokens on their own")
        self.layers[0].check(batch_size, new)

    def next_positions(self, new: int) -> Tensor:
        steps = torch.arange(new, device=self.device)
        if self._positions is None or self.length == 0:
            return self.length + steps
        return self._positions[:, self.length - 1 : self.length] + 1 + steps

    def record(self, new: int, segments: Tensor | None, positions: Tensor | None) -> Tensor | None:
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
        return table[:, self.length : self.length + new]

    def advance(self, new: int) -> None:
        """Each layer has counted for itself."""
        self.writing = False

    def crop(self, n: int) -> None:
        self._check_whole()
        behind = max(layer.written - layer.length for layer in self.layers)
        self._check_crop(n, self.length, self.length + behind, self._spare_rows)
        for layer in self.layers:
            layer.length -= n
        self._resize_rings(self.rollback)
        self._cropped_at = self.length

    def activate_past_recording(self) -> None:
        """From now on, all tokens since the last `crop` can be taken back, however many.

        Rings grow with what comes and shrink to window + rollback slots in `crop`, `crop(0)` included.

        >>> cache = LSCache([HeadPlan(windows=(4,))], head_dim=8, rollback=2)
        >>> cache.activate_past_recording()
        """
        self.recording, self._cropped_at = True, self.length

    def reset(self) -> None:
        self._resize_rings(self.rollback)
        for layer in self.layers:
            layer.length = layer.written = 0
        self._cropped_at, self.writing = 0, False
        self._segments = self._positions = None

    def _resize_rings(self, spare_rows: int) -> None:
        """Rings of window + spare_rows slots; no more can be taken back than there are slots."""
        extra = spare_rows - self._spare_rows
        if not extra:
            return
        for layer in self.layers:
            for store in layer.stores:
                if store.window is not None:
                    store.resize(narrower(store.window + spare_rows, self.max_length) or 0, layer.length)
            layer.written = max(layer.written + extra, layer.length)
        self._spare_rows = spare_rows

    def _noted(self, table: Tensor | None, before: Tensor, new: Tensor) -> Tensor:
        """A table (B, slots) of int64 with `new` written after `length` entries, which are `before` in a fresh one."""
        stop = self.length + new.shape[-1]
        if table is None or table.shape[1] < stop:
            rows = self.max_length or max(FIRST_ROWS, 2 * stop)
            grown = torch.empty(self.batch_size, rows, dtype=torch.long, device=self.device)
            grown[:, : self.length] = before if table is None else table[:, : self.length]
            table = grown
        table[:, self.length : stop] = new
        return table
