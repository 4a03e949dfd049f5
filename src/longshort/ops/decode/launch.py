"""From a decoding step to its launch: how many parts each head is split into, tile shapes, and the arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from longshort.ops.decode.kernel import REGULAR_LAYOUT, decode_kernel
from longshort.ops.decode.layout import HeadLayout, results_of
from longshort.ops.options import Options
from longshort.ops.triton.device import power_of_two, precision_of, processors, table, width_of
from longshort.ops.triton.forward_kernel import reduce_extremes_kernel

_JOINED, _AHEAD = 4096, 4
"""Numbers joined at a time, whatever the count of parts, since each count would otherwise be compiled separately; and
how many times as many are being fetched, where there are more."""


class DecodeShape(NamedTuple):
    """How a launch divides its work."""

    columns: int
    """Rows of the cache that a program takes at a time."""
    warps: int
    stages: int
    """Depth of the software pipeline over the tiles."""
    programs: float
    """Programs of split heads per multiprocessor of the GPU; the number of parts follows from it."""
    early: int = 0
    """Start before the previous kernel has ended, and wait for it where its results are needed; from Hopper on. The
    next kernel may start when this one does (1), after it has waited (2), or after its walk (3). With 1, waiting
    programs occupy multiprocessors, and prefetch, several launches ahead."""
    fetch: int = 0
    """Tiles of each program that are prefetched into the L2 cache before the length is known; on CUDA."""
    matrix: bool = False
    """Use the matrix units for a single query too, though they compute 16 rows for it; several queries always do."""


TUNED: dict[str, list[tuple[int, int, DecodeShape]]] = {
    "NVIDIA H200": [
        (32, 32, DecodeShape(32, 4, 6, 2.0, 3, 1)),
        (32, 8, DecodeShape(64, 4, 6, 1.75, 3, 1)),
        (64, 32, DecodeShape(128, 8, 2, 2.0, 1, 1)),
        (64, 8, DecodeShape(32, 4, 4, 1.75, 1, 1)),
        (64, 2, DecodeShape(16, 4, 6, 1.75, 3, 1)),
        (64, 1, DecodeShape(32, 4, 4, 0.75, 3, 1)),
        (128, 16, DecodeShape(64, 4, 2, 2.0, 1, 1)),
        (128, 1, DecodeShape(16, 4, 6, 0.75, 3, 1)),
    ]
}
"""By GPU: head dimension, split heads of all sequences, shape. From `python -m benchmarks decoding --attention`."""
_given: list[DecodeShape] = []


@contextmanager
def use(shape: DecodeShape) -> Iterator[None]:
    """Give every enclosed launch this shape: for the search that makes the table, and for tests."""
    _given.append(shape)
    try:
        yield
    finally:
        _given.pop()


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    tickets: Tensor,
    layout: tuple[int, ...],
    options: Options,
    extremes: int,
    sinks: Tensor | None = None,
    begins: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implements longshort::triton_decode."""
    (batch, n_heads, new, dim), n_kv = q.shape, k.shape[1]
    out, high, low = results_of(q, extremes)
    if out.numel() == 0:
        return out, high.fill_(-torch.inf), low.fill_(torch.inf)
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    group = n_heads // n_kv
    queries = group * new
    shape = decode_shape(q, keys, layout, batch)
    cut = _cut(layout, options.windows[::group], shape.columns, shape.programs, batch, q.device)
    found = q.new_empty((extremes, batch, n_heads, new) if extremes else (1,), dtype=torch.float32)
    slots = batch * cut.n_long * queries * cut.parts if cut.parts > 1 else 1
    partial = q.new_empty(slots * width_of(dim), dtype=torch.float32)
    numbers = q.new_empty(slots * 4, dtype=torch.float32)
    reach = table(options.windows, torch.int32, q.device)
    rates = [None if r is None else table(r, torch.float32, q.device) for r in (options.decays, options.slopes)]
    ids = reach if segments is None else segments
    firsts = [] if options.firsts is None else [table(x, torch.int32, q.device) for x in (options.firsts, layout[3::4])]
    joined = joined_at_a_time(dim)
    places = length if cut.table is None else cut.table
    decode_kernel[(batch, n_kv + (cut.parts - 1) * cut.n_long)](
        *(q, k, v, keys, values, places, length, ids, reach, *(reach if r is None else r for r in rates)),
        reach if sinks is None else sinks,
        *(firsts or (reach, reach)),
        reach if begins is None else begins,
        *(out, found, partial, numbers, tickets),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3]),
        *(options.scale_for(q), 1.0 if options.softcap is None else options.softcap),
        *(batch, n_kv, cut.n_long, cut.parts, 0 if segments is None else segments.stride(0)),
        *cut.regular,
        **{"T": new, "GROUP": group, "D": dim, "WIDTH": width_of(dim)},
        **{"DECAY": rates[0] is not None, "SLOPE": rates[1] is not None},
        **{
            "SOFTCAP": options.softcap is not None,
            "SEGMENTS": segments is not None,
            "FIRST": options.firsts is not None,
        },
        **{"PRECISION": precision_of(keys), "SPLIT": cut.parts > 1, "STATS": extremes, "SINKS": sinks is not None},
        **{"M": 1 if queries == 1 and not shape.matrix else max(16, power_of_two(queries)), "N": shape.columns},
        **{"NEW": max(16, power_of_two(new)), "JOINED": joined, "AHEAD": 1 if cut.parts <= joined else _AHEAD},
        **{"STAGES": shape.stages, "num_warps": shape.warps, "PIECES": _pieces(width_of(dim), 32 * shape.warps)},
        **{"REGULAR": cut.table is None, "EARLY": shape.early, "FETCH": shape.fetch if q.is_cuda else 0},
        **({"launch_pdl": True} if shape.early else {}),
    )
    if extremes:
        flags = {"STATS": extremes, "BLOCK": 1024, "num_warps": 4}
        reduce_extremes_kernel[(n_heads,)](found, high, low, batch, n_heads, new, **flags)
    return out, high, low


def decode_shape(q: Tensor, keys: Tensor, layout: tuple[int, ...], batch: int) -> DecodeShape:
    """The tuned shape for the nearest number of split heads, or a default for GPUs and sizes that were not tuned."""
    if _given:
        return _given[-1]
    longest = max(layout[2::4])
    slots = batch * sum(rows == longest for rows in layout[2::4])
    return _looked_up(keys.dtype, q.shape[3], slots, q.shape[2] * q.shape[1] > len(layout) // 4, q.device)


@lru_cache(maxsize=256)
def _looked_up(dtype: torch.dtype, dim: int, slots: int, several: bool, device: torch.device) -> DecodeShape:
    rows = TUNED.get(torch.cuda.get_device_name(device), []) if device.type == "cuda" else []
    fitting = [row for row in rows if dim <= row[0] < 2 * max(dim, 32)]
    if fitting and dtype.itemsize == 2 and not several:
        return min(fitting, key=lambda row: (row[0], abs(math.log2(row[1] / slots))))[2]
    # A tile is 8 KB of keys and 8 KB of values, with two tiles in flight: three programs share a multiprocessor.
    return DecodeShape(max(16, min(128, 8192 // dtype.itemsize // width_of(dim))), 4, 3, 1.0)


class _Cut(NamedTuple):
    n_long: int
    """Heads that are split."""
    parts: int
    regular: tuple[int, ...]
    """Where the split heads and the rest are, as arguments of the kernel, so that no memory is read before the cache.
    Zeros if their layout is not regular."""
    table: Tensor | None
    """(H_kv, 5) int64, if it is not regular: KV head, first row, rows from one sequence to the next, rows, window of
    its first query head; the split heads come first. One table, since each access takes half a microsecond."""


@cache  # a captured CUDA graph reads the table for as long as it lives
def _cut(
    layout: tuple[int, ...],
    windows: tuple[int, ...],
    columns: int,
    programs: float,
    batch: int,
    device: torch.device,
) -> _Cut:
    """The heads with the most rows are split if others have fewer, or if multiprocessors would be idle without it."""
    heads = [HeadLayout(*layout[i : i + 4]) for i in range(0, len(layout), 4)]
    tiles = [-(-head.rows // columns) for head in heads]
    long = [head for head in range(len(heads)) if 2 * tiles[head] > max(tiles)]
    parts = parts_of(max(tiles), round(programs * processors(device)) // (batch * len(long)))
    if parts == 1:  # nothing is split, so the order of the heads is free: equal ones together
        long = [head for head in range(len(heads)) if heads[head].rows == max(head.rows for head in heads)]
    order = [*long, *(head for head in range(len(heads)) if head not in long)]
    numbers = [(head, *heads[head][:3], windows[head]) for head in order]
    regular = [_at_equal_distances(some) for some in (numbers[: len(long)], numbers[len(long) :])]
    if all(regular):
        return _Cut(len(long), parts, (*regular[0], *regular[1]), None)
    return _Cut(len(long), parts, (0,) * len(REGULAR_LAYOUT), torch.tensor(numbers, dtype=torch.int64, device=device))


def parts_of(tiles: int, room: int) -> int:
    """Number of parts for a head of this many tiles, given room for that many parts.

    >>> parts_of(256, 132), parts_of(256, 300), parts_of(256, 0)
    (128, 256, 1)
    """
    parts = max(1, min(tiles, room))
    return -(-tiles // -(-tiles // parts))  # the fewest parts whose longest is no longer


def joined_at_a_time(head_dim: int) -> int:
    """How many parts of a head are joined at a time."""
    return max(8, min(128, _JOINED // width_of(head_dim)))


def _at_equal_distances(heads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """(head, step to the next, first row, step to the next, apart, rows, window); empty if the steps are not equal.

    >>> _at_equal_distances([(1, 500, 40, 20, 16), (2, 520, 40, 20, 16), (3, 540, 40, 20, 16)])
    (1, 1, 500, 20, 40, 20, 16)
    >>> _at_equal_distances([(1, 500, 40, 20, 16), (2, 520, 40, 20, 9)])
    ()
    """
    head, first, *alike = heads[0] if heads else (0,) * 5
    steps = (heads[1][0] - head, heads[1][1] - first) if len(heads) > 1 else (0, 0)
    expected = [(head + i * steps[0], first + i * steps[1], *alike) for i in range(len(heads))]
    return (head, steps[0], first, steps[1], *alike) if heads == expected else ()


def _pieces(width: int, threads: int) -> int:
    """Number of pieces of a row, each smaller than the number of threads; at most four."""
    return min(4, power_of_two(width // threads + 1))
