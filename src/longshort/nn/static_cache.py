"""The cache in its static form: fixed shapes and addresses, the length on the device, no host in a decoding step.

So a step can be captured in a CUDA graph and replayed as the cache grows, and compiled. Chunks longer than a step, as
in a prefill, are attended to as in `LSCache` and read the length once.

Shapes: B batch, T new tokens, S positions, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.nn.kv_cache import KVCache
from longshort.nn.layer_cache import CachedAttention, CacheLayer
from longshort.numeric import check_count
from longshort.ops import Smoothing
from longshort.ops.decode import HeadLayout, decode
from longshort.ops.documents import starts
from longshort.ops.options import Stats
from longshort.ops.smoothing import held_heads
from longshort.reach import LayerReach

MOST_TOKENS = 8
"""The most tokens in a step; also at most 64 query rows per KV head, which the kernel keeps in registers."""


class _Clock:
    """The length that all layers share."""

    def __init__(self, device: torch.device | str) -> None:
        self.held = torch.zeros(1, dtype=torch.long, device=device)
        """Positions held."""
        self.start: int | None = None
        """The same on the host while a chunk passes through the layers."""

    @property
    def known(self) -> int | None:
        """The length where reading it is free."""
        return None if self.held.device.type != "cpu" or torch.compiler.is_compiling() else int(self.held)


class LSStaticLayer(CacheLayer):
    """The static cache of one attention layer: all pools lie in one tensor of keys and one of values."""

    def __init__(
        self,
        plan: HeadPlan | LayerReach,
        n_kv_heads: int,
        head_dim: int,
        *,
        clock: _Clock,
        tickets: Tensor,
        rollback: int,
        dtype: torch.dtype,
        device: torch.device | str,
        **sizes: Any,
    ) -> None:
        super().__init__(plan, n_kv_heads, head_dim, rollback=rollback, dtype=dtype, device="meta", **sizes)
        if self.raw is not None:
            raw = self.raw
            raw.k, raw.v = (torch.empty(x.shape, dtype=dtype, device=device) for x in (raw.k, raw.v))
        self.clock, self.tickets = clock, tickets
        self.most_tokens = max(1, min(MOST_TOKENS, 64 * self.held_heads // plan.n_heads, rollback + 1))
        """A ring has window + rollback slots: with more tokens, the last would overwrite what the first sees."""
        size = sum(store.k.numel() for pool in self.pools for store in (pool, pool.kept) if store is not None)
        self.keys, self.values = (torch.empty(size, dtype=dtype, device=device) for _ in range(2))
        layout: dict[int, HeadLayout] = {}
        offset = 0
        for pool in self.pools:
            rows, kept = pool.k.shape[2], 0 if pool.kept is None else pool.kept.k.shape[2]
            shape = (*pool.k.shape[:2], kept + rows, head_dim)
            stop = offset + math.prod(shape)
            keys, values = self.keys[offset:stop].view(shape), self.values[offset:stop].view(shape)
            pool.k, pool.v = keys[:, :, kept:], values[:, :, kept:]
            if pool.kept is not None:
                pool.kept.k, pool.kept.v = keys[:, :, :kept], values[:, :, :kept]
            heads = range(self.held_heads)[pool.kv_heads] if isinstance(pool.kv_heads, slice) else pool.kv_heads
            for i, head in enumerate(heads):
                first = offset // head_dim + i * (kept + rows) + kept
                layout[head] = HeadLayout(first, len(heads) * (kept + rows), rows, kept)
            offset = stop
        self.layout = tuple(layout[head] for head in range(self.held_heads))

    def check(self, batch_size: int, new: int) -> None:
        """As `LSLayerCache.check`; on a GPU it is not checked whether a step has room: see `LSStaticCache`."""
        held = self.clock.known if new <= self.most_tokens else self._start()
        self.check_place(batch_size, new, 0 if held is None else held)

    def next_positions(self, new: int) -> Tensor:
        """(T,) positions of the next tokens."""
        return self.clock.held + torch.arange(new, device=self.clock.held.device)

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
        """Append and attend, as `LSLayerCache.attend`; `LSStaticCache.advance` counts the tokens, once for all layers.

        `segments` (B, S) are those of a chunk; those of a step are (B, max_length).
        """
        new = k.shape[2]
        self.check(k.shape[0], new)
        if self.raw is not None and new <= self.most_tokens:
            k, v = self.raw.smoothed_step(self.clock.held, k, v, segments)
        elif self.raw is not None:
            k, v = self.raw.smoothed(self._start(), k, v, segments)
        if new > self.most_tokens:
            options: dict[str, Any] = {"softcap": softcap, "segments": segments, "sinks": sinks}
            return self.attend_chunk(self._start(), q, k, v, **options, stats=stats, backend=backend)
        begins = None
        if segments is not None and self.plan.firsts is not None:
            begins = starts(segments, self.clock.held, new)
        out, logits = decode(
            q, k, v, self.keys, self.values, self.clock.held, segments, self.tickets, self.layout, self.plan,
            softcap=softcap, sinks=sinks, begins=begins, stats=stats, backend=backend,
        )  # fmt: skip
        return CachedAttention(out, logits)

    def _start(self) -> int:
        return int(self.clock.held) if self.clock.start is None else self.clock.start


class LSStaticCache(KVCache):
    """A cache whose tensors never move and whose length is a tensor; `GPT.new_cache(static=True)` makes one.

    A step of up to `most_tokens` tokens (8, or fewer with a small rollback or very wide groups of queries) has no host
    synchronisation and nothing in it that depends on the length. On a GPU it therefore cannot refuse a token beyond
    `max_length`: what reads `length` afterwards raises. Segments, or positions of one's own, must come with the first
    tokens if they come at all: a captured step continues with the last ones. The batch size is fixed. With streaming
    heads, a step of several tokens must be of one document.

    >>> from longshort import GPT, GPTConfig
    >>> model, tokens = GPT(GPTConfig.preset("tiny")).eval(), torch.randint(256, (1, 30))
    >>> cache = model.new_cache(static=True, max_length=30)
    >>> parts = [model(part, cache=cache).logits for part in tokens.split((20, 1, 1, 8), dim=1)]
    >>> cache.length, torch.allclose(torch.cat(parts, dim=1), model(tokens).logits, atol=1e-5)
    (30, True)
    """

    layers: list[LSStaticLayer]

    def __init__(
        self,
        plans: Sequence[HeadPlan | LayerReach],
        *,
        head_dim: int,
        max_length: int,
        n_kv_heads: int | None = None,
        batch_size: int = 1,
        rollback: int = 32,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        smoothing: Smoothing | None = None,
    ) -> None:
        check_count("max_length", max_length)  # None would leave a size that nothing lets grow
        sizes: dict[str, Any] = {"batch_size": batch_size, "max_length": max_length, "rollback": rollback}
        sizes |= {"dtype": dtype, "device": device, "smoothing": smoothing}
        super().__init__(plans, head_dim=head_dim, n_kv_heads=n_kv_heads, **sizes)
        self.capacity, self._written = max_length, 0
        self._clock = _Clock(device)
        # Layers take turns, so one set of tickets serves them all.
        only = [plan if isinstance(plan, HeadPlan) else plan.plan for plan in plans]
        heads = max(held_heads(plan, n_kv_heads or plan.n_heads, smoothing) for plan in only)
        self._tickets = torch.zeros(batch_size * heads, dtype=torch.int32, device=device)
        sizes |= {"clock": self._clock, "tickets": self._tickets}
        self.layers = [LSStaticLayer(plan, n_kv_heads or plan.n_heads, head_dim, **sizes) for plan in plans]
        self.most_tokens = min(layer.most_tokens for layer in self.layers)

    @property
    def length(self) -> int:
        """Positions held, padding included; reading it waits for the device."""
        held = int(self._clock.held)
        if held > self.capacity:
            raise ValueError(f"cache has max_length {self.capacity} and was given {held} tokens: call reset()")
        return held

    @property
    def known_length(self) -> int | None:
        return self._clock.known

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._clock.held.nbytes + self._tickets.nbytes

    def check(self, batch_size: int, new: int) -> None:
        self._check_whole()
        self.layers[0].check(batch_size, new)

    def next_positions(self, new: int) -> Tensor:
        following = self.layers[0].next_positions(new)
        if self._positions is None:
            return following
        steps = torch.arange(1, new + 1, device=self.device)
        return torch.where(self._clock.held > 0, self._last(self._positions), -1) + steps

    def record(self, new: int, segments: Tensor | None, positions: Tensor | None) -> Tensor | None:
        """As `KVCache.record`; for a step, the segments (B, max_length) of all positions there will be."""
        self.writing = True
        if new > self.most_tokens:
            self._clock.start = int(self._clock.held)
        if self._positions is not None or positions is not None:
            given = self.next_positions(new) if positions is None else positions
            if self._positions is None:
                self._positions = self._table().copy_(torch.arange(self.capacity, device=self.device))
            self._note(self._positions, given)
        if self._segments is None and segments is None:
            return None
        if self._segments is None:
            self._segments = self._table().zero_()
        if segments is None:
            segments = torch.where(self._clock.held > 0, self._last(self._segments), 0)
        self._note(self._segments, segments.expand(self.batch_size, new))
        start = self._clock.start
        return self._segments if start is None else self._segments[:, : start + new]

    def latest(self, table: Tensor, new: int) -> Tensor:
        return table.index_select(1, self.layers[0].next_positions(new))

    def advance(self, new: int) -> None:
        self._clock.held.add_(new)
        if self._clock.start is not None:
            self._clock.start = None
        self.writing = False

    def crop(self, n: int) -> None:
        self._check_whole()
        length = self.length
        self._written = max(self._written, length)
        self._check_crop(n, length, self._written, self.rollback)
        self._clock.held.sub_(n)

    def activate_past_recording(self) -> None:
        raise ValueError("a static cache keeps its size and cannot record the past: make it with a larger rollback")

    def reset(self) -> None:
        self._clock.held.zero_()
        self._tickets.zero_()
        self._clock.start, self._written, self.writing = None, 0, False

    def nothing_was_written(self) -> None:
        """A pass was recorded for a CUDA graph, failed, and has not run."""
        self.writing, self._clock.start = False, None

    def select(self, rows: Tensor) -> None:
        """Sequence i becomes a copy of sequence rows[i]; there must be as many as before."""
        if isinstance(rows, Tensor) and rows.shape != (self.batch_size,):
            raise ValueError(
                f"rows must have shape ({self.batch_size},), got {tuple(rows.shape)}: a static cache keeps its size"
            )
        super().select(rows)

    def _last(self, table: Tensor) -> Tensor:
        """(B, 1): the entries of the last token, whatever they are where there is none."""
        return table.index_select(1, (self._clock.held - 1).clamp(min=0))

    def _table(self) -> Tensor:
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("segments and positions must come with the first tokens, not first in a CUDA graph")
        return torch.empty(self.batch_size, self.capacity, dtype=torch.long, device=self.device)

    def _note(self, table: Tensor, new: Tensor) -> None:
        where = self.layers[0].next_positions(new.shape[-1])
        table.index_copy_(1, where, new.to(torch.long).expand(self.batch_size, -1))
