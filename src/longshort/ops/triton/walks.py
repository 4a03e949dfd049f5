"""How a program finds and loads its work: its tile, the range it walks over, loads and stores.

Letters: B batch, H heads, T queries, S keys; M query rows and N key columns of a tile, D head dimension.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import visible_range

SIZES = ("B", "H", "T", "S", "n_long", "parts", "tiles", "length", "padded")
"""Arguments whose value must not trigger another compilation."""


@triton.jit
def slab(base, stride_b, stride_h, b, h):
    """Where (b, h) of a (B, H, T, D) tensor begins; 64-bit, since B*H*T*D exceeds 2^31 at sizes people use."""
    return base + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h


@triton.jit
def load_rows(
    x, stride_b, stride_h, stride_t, b, h, first, length,
    ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """(ROWS, WIDTH) positions first .. first+ROWS of (b, h), zeros outside; with TMA, x is a tensor descriptor."""
    if TMA:
        tile = tl.reshape(x.load([b, h, first, 0]), (ROWS, WIDTH))
    else:
        rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
        at = slab(x, stride_b, stride_h, b, h) + tl.cast(first, tl.int64) * stride_t
        inside = ((rows >= -first) & (rows < length - first))[:, None]
        if WIDTH != D:
            inside = inside & (columns < D)[None, :]
        tile = tl.load(at + (rows[:, None] * stride_t + columns[None, :]), mask=inside, other=0.0)
    return tile


@triton.jit
def load_numbers(x, first, ROWS: tl.constexpr, TMA: tl.constexpr):
    """(ROWS,) fp32 from position `first` on; with TMA, x is a tensor descriptor."""
    return x.load([first]) if TMA else tl.load(x + first + tl.arange(0, ROWS))


@triton.jit
def store_rows(
    x, stride_b, stride_h, stride_t, b, h, first, length, values,
    ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = slab(x, stride_b, stride_h, b, h) + tl.cast(first, tl.int64) * stride_t
    inside = (rows < length - first)[:, None]
    if WIDTH != D:
        inside = inside & (columns < D)[None, :]
    tl.store(at + (rows[:, None] * stride_t + columns[None, :]), values.to(x.dtype.element_ty), mask=inside)


@triton.jit
def own_tile(tiles, n_long, parts, heads, SPLIT: tl.constexpr, DESCENDING: tl.constexpr):
    """Tile, part, slot (-1 for a short head), sequence and head of this program.

    Long heads come first, each in `parts`, their longest tiles before the others, so that the last programs to end are
    short. Three grid axes save dividing a single index, which would cost as much as masking a tile.
    """
    b, tile, which, part, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2), 0, -1
    long_programs = n_long
    if SPLIT:
        long_programs = n_long * parts
        part = tl.where(which < long_programs, which % parts, 0)
        which = tl.where(which < long_programs, which // parts, which - long_programs + n_long)
    if which < n_long:
        slot = b * n_long + which
        if DESCENDING:
            tile = tiles - 1 - tile
    return tile, part, slot, b, tl.load(heads + which)


@triton.jit
def own_part(start, stop, part, parts, slot, N: tl.constexpr):
    """An equal share, in tiles of N, of a long head's range."""
    if slot >= 0:
        share = tl.cdiv(tl.cdiv(stop - start, N), parts) * N
        start += part * share
        stop = tl.minimum(stop, start + share)
    return start, stop


@triton.jit
def keys_of(row, window, T, S, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr):
    """Range of keys that rows row .. row+M see, from a multiple of N."""
    first, _ = visible_range(row + S - T, window, S, CAUSAL)
    _, last = visible_range(row + S - T + M - 1, window, S, CAUSAL)
    return first // N * N, tl.minimum(last + 1, S)


@triton.jit
def at_edge(row, key, window, T, S, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr):
    """Does a tile hold pairs that may not see each other? If not, it needs no mask."""
    _, clear_last = visible_range(row + S - T, window, S, CAUSAL)
    clear_first, _ = visible_range(row + S - T + M - 1, window, S, CAUSAL)
    return (key < clear_first) | (key + N - 1 > clear_last)


@triton.jit
def queries_of(begin, window, T, S, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr):
    """Range of rows that see keys begin .. begin+N, from a multiple of M."""
    first = begin - (S - T)
    if not CAUSAL:
        first = first - window + 1
    return tl.maximum(0, first) // M * M, tl.minimum(T, begin + N - 1 + window - (S - T))


@triton.jit
def also_first_keys(
    places, b, row, first, start, stop, B, T, S,
    M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """First keys of the documents of rows row .. row+M outside of start .. stop: where the tiles before it begin, how
    many positions those cover, and a `stop` behind the last. `places` are the tables of `documents`, (4, B, S)."""
    begin, end, last = 0, tl.minimum(first, start), tl.minimum(first, S)
    if SEGMENTS:
        t_M = row + S - T + tl.arange(0, M)
        at, table = places + b.to(tl.int64) * S + t_M, B.to(tl.int64) * S
        begin_M = tl.load(at + table, mask=t_M < S, other=1 << 30)
        enough_M = tl.load(at + 2 * table, mask=t_M < S, other=0)
        before = (begin_M < start) & (first > 0)
        begin = tl.min(tl.where(before, begin_M, start), 0) // N * N
        end = tl.max(tl.where(before, tl.minimum(enough_M, start), 0), 0)
        last = tl.max(tl.where(first > 0, enough_M, 0), 0)
    if not CAUSAL:
        stop = tl.maximum(stop, last)
    return begin, tl.cdiv(tl.maximum(end - begin, 0), N) * N, stop


@triton.jit
def also_first_queries(
    places, b, begin, first, start, stop, B, T, S,
    M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """A range of rows, extended to all that see the first keys among keys begin .. begin+N."""
    if SEGMENTS:
        j_N = begin + tl.arange(0, N)
        at, table = places + b.to(tl.int64) * S + j_N, B.to(tl.int64) * S
        early = tl.load(at, mask=j_N < S, other=1 << 30) < first
        end_N = tl.load(at + 3 * table, mask=j_N < S, other=0)
        stop = tl.maximum(stop, tl.max(tl.where(early, end_N - (S - T), 0), 0))
        if not CAUSAL:
            begin_N = tl.load(at + table, mask=j_N < S, other=0)
            lowest = tl.min(tl.where(early, tl.maximum(begin_N - (S - T), 0), T), 0)
            start = tl.minimum(start, lowest // M * M)
    else:
        stop = tl.where(begin < first, T, stop)
        if not CAUSAL:
            start = tl.where(begin < first, 0, start)
    return start, stop


@triton.jit
def on_side(start, stop, first, SIDE: tl.constexpr, OWN: tl.constexpr, STEP: tl.constexpr):
    """The tiles of a walk, start .. stop in steps of STEP, that are before first .. first+OWN (SIDE 1), after it (-1)
    or neither (0). A tile that shares only one position with it still counts as before or after.
    """
    mixed = tl.maximum(first + 1, 0) // STEP * STEP
    after = tl.cdiv(tl.maximum(first + OWN - 1, 0), STEP) * STEP
    if SIDE == 1:
        stop = tl.minimum(stop, mixed)
    elif SIDE == 0:
        start, stop = tl.maximum(start, mixed), tl.minimum(stop, after)
    else:
        start = tl.maximum(start, after)
    return start, stop


@triton.jit
def partial_rows(partial, slot, part, parts, length, first, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Pointers into a (slots, parts, length, WIDTH) fp32 tensor, and which of the rows exist."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = partial + ((slot * parts + part).to(tl.int64) * length + first) * WIDTH
    return at + (rows[:, None] * WIDTH + columns[None, :]), (rows < length - first)[:, None]
