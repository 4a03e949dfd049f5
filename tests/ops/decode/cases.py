"""Decoding steps for the tests: a cache filled by hand, its other rows NaN, and the reference's answer."""

from contextlib import nullcontext
from dataclasses import dataclass

import torch

from longshort import HeadPlan
from longshort.ops.api import attention
from longshort.ops.decode import HeadLayout, decode
from longshort.ops.decode.launch import DecodeShape, use
from longshort.ops.documents import starts

SHAPE = DecodeShape(32, 4, 1, 4.0)
"""So that a full pool of more than 32 rows is split, and rings of more than 32 take several tiles."""


@dataclass
class Step:
    """`held` positions in the cache, then `new` tokens."""

    windows: tuple[int | None, ...]
    held: int
    new: int = 1
    batch: int = 1
    kv_heads: int | None = None
    dim: int = 16
    capacity: int = 200
    rollback: int = 0
    dtype: torch.dtype = torch.float32
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    decays: tuple[float, ...] | None = None
    sinks: bool = False
    padding: tuple[int, ...] | None = None
    """Columns of padding before each row."""
    cut: int = 0
    """With padding: columns before this belong to another text."""
    firsts: tuple[int, ...] | None = None
    shape: DecodeShape | None = SHAPE
    """None: as the table has it."""
    device: str = "cpu"

    @property
    def plan(self):
        return HeadPlan(windows=self.windows, slopes=self.slopes, decays=self.decays, firsts=self.firsts)

    def make_sinks(self, dtype=torch.float32):
        if not self.sinks:
            return None
        return 2 * torch.randn(len(self.windows), generator=torch.Generator().manual_seed(1)).to(self.device, dtype)

    def layout(self):
        """Each KV head on its own, the last first, batch rows together."""
        heads, first = [], 0
        kv_heads = self.kv_heads or len(self.windows)
        reaches = zip(self.plan.kv_windows(kv_heads), self.plan.kv_firsts(kv_heads), strict=True)
        for reach, kept in reversed(list(reaches)):
            rows = self.capacity if reach is None else min(reach + self.rollback, self.capacity)
            heads.append(HeadLayout(first + kept, kept + rows, rows, kept))
            first += self.batch * (kept + rows)
        return tuple(reversed(heads)), first

    def draw(self):
        generator, device = torch.Generator().manual_seed(0), self.device
        total, kv_heads = self.held + self.new, self.kv_heads or len(self.windows)
        q = torch.randn(self.batch, len(self.windows), self.new, self.dim, generator=generator).to(device, self.dtype)
        k, v = (
            torch.randn(self.batch, kv_heads, total, self.dim, generator=generator).to(device, self.dtype)
            for _ in range(2)
        )
        ids = None
        if self.padding is not None:
            ids = torch.full((self.batch, self.capacity), 99, device=device)
            column = torch.arange(total, device=device)
            ids[:, :total] = torch.where(column < torch.tensor(self.padding, device=device)[:, None], -1, 7)
            ids[:, : self.cut] = torch.where(ids[:, : self.cut] < 0, -1, 3)
            k.masked_fill_((ids[:, None, :total, None] < 0), torch.nan)
        return q, k, v, ids

    def begin_of(self, b):
        """Where the document of the last token held begins."""
        ids = self.draw()[3]
        return 0 if ids is None or not self.held else int(starts(ids, torch.tensor([self.held - 1]).to(ids), 1)[b, 0])

    def filled(self, history):
        """Flat storage that holds a history (B, H_kv, held, D), NaN in the rows that were never written."""
        layout, rows = self.layout()
        storage = torch.full((rows, self.dim), torch.nan, dtype=self.dtype, device=self.device)
        for head, (first, apart, ring, kept) in enumerate(layout):
            position = torch.arange(max(0, self.held - ring), self.held, device=self.device)
            for b in range(self.batch):
                storage[first + b * apart + position % ring] = history[b, head, position]
                begin = self.begin_of(b)
                count = max(0, min(kept, self.held - begin))
                row = first + b * apart - kept
                storage[row : row + count] = history[b, head, begin : begin + count]
        return storage.flatten()


def run(step, backend, stats=True):
    q, k, v, ids = step.draw()
    layout, _ = step.layout()
    keys, values = (step.filled(x[:, :, : step.held]) for x in (k, v))
    tickets = torch.zeros(step.batch * k.shape[1], dtype=torch.int32, device=step.device)
    length = torch.tensor([step.held], device=step.device)
    begins = None if ids is None or step.firsts is None else starts(ids, length, step.new)
    with nullcontext() if step.shape is None else use(step.shape):
        out, logits = decode(
            q, k[:, :, step.held :], v[:, :, step.held :], keys, values, length, ids, tickets, layout, step.plan,
            softcap=step.softcap, sinks=step.make_sinks(), begins=begins, stats=stats, backend=backend,
        )  # fmt: skip
    assert not tickets.any()
    return out, logits, keys, values


def check_statistics_change_no_bit(step, backend):
    """Neither kind changes the output, and "max" alone finds the maxima that both find, and no minima."""
    (none, nothing, *_), (one, largest, *_), (two, both, *_) = (run(step, backend, s) for s in (False, "max", True))
    assert torch.equal(none, two) and torch.equal(one, two)
    assert nothing is None and largest.min is None and torch.equal(largest.max, both.max)


def expected(step):
    q, k, v, ids = step.draw()
    total = step.held + step.new
    segments = None if ids is None else ids[:, :total]
    inputs, sinks = (x.to(torch.float64) for x in (q, k, v)), step.make_sinks(torch.float64)
    return attention(
        *inputs, step.plan, softcap=step.softcap, segments=segments, sinks=sinks, stats=True, backend="reference"
    )


def check(step, backend, tolerance=None):
    out, logits, keys, values = run(step, backend)
    reference = expected(step)
    tolerance = tolerance or (1e-5 if step.dtype == torch.float32 else 4e-3)
    close = {"atol": tolerance, "rtol": tolerance, "check_dtype": False}
    torch.testing.assert_close(out, reference.out, **close)
    for mine, theirs in zip(logits, reference.stats, strict=True):
        torch.testing.assert_close(mine, theirs, **close)
    _, k, v, _ = step.draw()
    for storage, history in ((keys, k), (values, v)):
        after = Step(**vars(step) | {"held": step.held + step.new}).filled(history)
        there = ~after.isnan()
        assert torch.equal(storage[there], after[there])
        overwritten = step.filled(history[:, :, : step.held])
        assert storage[overwritten.isnan() & ~there].isnan().all()
