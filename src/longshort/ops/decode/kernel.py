"""The decoding kernel: a few new tokens of every sequence join the cache and attend over it, all heads in one launch.

A program takes one KV head of one sequence, with all its query heads. A head with many rows is split: part i takes
tiles i, i + parts, ... of N rows, whatever the length, which is read from the device. The part that finishes last
joins them, in the order of the parts, so that two runs agree to the bit. The new tokens are read from the inputs, not
from the cache, and part 0 writes them into the cache: no other program may see the rows that it overwrites.

Letters: B batch, T new tokens, D head dimension; M queries of a KV head, N rows of a tile.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.decode.walks import also_each_other, one_query, over_lanes, row_of, several_queries
from longshort.ops.triton.scores import LOG2E, NEVER

REGULAR_LAYOUT = tuple(
    f"{which}_{number}"
    for which in ("long", "rest")
    for number in ("head", "heads_apart", "first", "firsts_apart", "apart", "rows", "window")
)
"""Where the split heads and the rest of a regular layout are: see `place_of`."""
SIZES = ("B", "n_kv", "n_long", "parts", "columns", *REGULAR_LAYOUT)
"""Arguments whose value must not trigger another compilation."""


@triton.jit(do_not_specialize=SIZES)
def decode_kernel(
    q, k, v, keys, values, layout, length, ids, windows, decays, slopes, sinks, firsts, kept_rows, begins,
    out, extremes, partial, numbers, tickets,
    sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, B, n_kv, n_long, parts, columns,
    long_head, long_heads_apart, long_first, long_firsts_apart, long_apart, long_rows, long_window,
    rest_head, rest_heads_apart, rest_first, rest_firsts_apart, rest_apart, rest_rows, rest_window,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr, SPLIT: tl.constexpr, STATS: tl.constexpr, SINKS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, NEW: tl.constexpr, JOINED: tl.constexpr, STAGES: tl.constexpr,
    REGULAR: tl.constexpr, EARLY: tl.constexpr, FETCH: tl.constexpr, AHEAD: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    slot, part, share, b, which = own_work(n_long, parts)
    if REGULAR:
        if which < n_long:
            head, first, rows, window = place_of(
                which, b, long_head, long_heads_apart, long_first, long_firsts_apart, long_apart, long_rows, long_window
            )
        else:
            head, first, rows, window = place_of(
                which - n_long, b,
                rest_head, rest_heads_apart, rest_first, rest_firsts_apart, rest_apart, rest_rows, rest_window,
            )  # fmt: skip
    else:
        row = layout + which * 5
        head, rows, window = tl.load(row).to(tl.int32), tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
        first = tl.load(row + 1) + b * tl.load(row + 2)
    origin = first * D  # in rows, not elements: a multiple of D is known to be aligned
    keys, values, ids = keys + origin, values + origin, ids + b.to(tl.int64) * columns
    for i in tl.static_range(FETCH):
        # Safe while the previous kernel may still write there: all writes go through the L2 cache, so none is missed.
        fetch(keys, (part + i * share) * N, rows, D, WIDTH, N)
        fetch(values, (part + i * share) * N, rows, D, WIDTH, N)
    if EARLY == 1:
        tl.extra.cuda.gdc_launch_dependents()
    if EARLY:  # started while the previous kernel still runs: nothing read so far is written by that kernel
        tl.extra.cuda.gdc_wait()
    if EARLY == 2:
        tl.extra.cuda.gdc_launch_dependents()
    held = tl.load(length).to(tl.int32)  # not earlier: the compiler waits for it soon after the load
    k, v = k + b.to(tl.int64) * sk_b + head * sk_h, v + b.to(tl.int64) * sv_b + head * sv_h
    q += b.to(tl.int64) * sq_b + head * GROUP * sq_h
    kept, begin = 0, 0
    if FIRST:
        kept = tl.load(kept_rows + head)
        if SEGMENTS:
            begins += b * T
            begin = tl.load(begins).to(tl.int32)

    if M == 1:
        d_D, count = tl.arange(0, WIDTH), tl.where(part == 0, D, 0)
        dtype = keys.dtype.element_ty
        # Loaded before the walk and used after it, so that nothing waits for them.
        kept_k = tl.load(k + d_D, mask=d_D < count, other=0.0).to(dtype)
        kept_v = tl.load(v + d_D, mask=d_D < count, other=0.0).to(dtype)
        q_D = row_of(q, D, WIDTH, PIECES).to(dtype).to(tl.float32)
        largest, total, weighted, top, bottom = one_query(
            q_D, k, v, keys, values, ids, window, firsts, kept, begin, decays, slopes, head, held, rows, part, share,
            scale, softcap, D, WIDTH, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, STATS, N, STAGES, PIECES,
        )  # fmt: skip
        if part == 0:
            at = (held % rows).to(tl.int64) * D + d_D
            tl.store(keys + at, kept_k, mask=d_D < D)
            tl.store(values + at, kept_v, mask=d_D < D)
            if FIRST:
                to_keep = kept_of(held, begin, kept, ids, D, SEGMENTS)
                at = (held - begin - kept).to(tl.int64) * D + d_D
                tl.store(keys + at, kept_k, mask=d_D < to_keep)
                tl.store(values + at, kept_v, mask=d_D < to_keep)
    else:
        largest, total, weighted, top, bottom = several_queries(
            q, sq_h, sq_t, keys, values, ids, windows, firsts, kept, begins, begin, decays, slopes, head, held, rows,
            part, share, scale, softcap,
            T, GROUP, D, WIDTH, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, PRECISION, STATS, M, N, STAGES,
        )  # fmt: skip
        if part == 0:
            largest, total, weighted, top, bottom = also_each_other(
                q, sq_h, sq_t, k, sk_t, v, sv_t, keys, ids, windows, firsts, begins, decays, slopes, head, held, scale,
                softcap, largest, total, weighted, top, bottom,
                T, GROUP, D, WIDTH, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, PRECISION, STATS, M, NEW,
            )  # fmt: skip
            append(keys, k, sk_t, held, rows, T, D, WIDTH)
            append(values, v, sv_t, held, rows, T, D, WIDTH)
            if FIRST:
                keep(keys, k, sk_t, held, kept, begins, ids, T, D, WIDTH, SEGMENTS)
                keep(values, v, sv_t, held, kept, begins, ids, T, D, WIDTH, SEGMENTS)

    if EARLY == 3:
        tl.extra.cuda.gdc_launch_dependents()
    m_M = tl.arange(0, M)
    whole = True
    if SPLIT:
        whole = share == 1
    if whole:
        finish(
            out, so_b, so_h, so_t, extremes, sinks, largest, total, weighted, top, bottom, m_M, b, head, B, n_kv,
            T, GROUP, D, WIDTH, STATS, SINKS,
        )  # fmt: skip
    elif SPLIT:
        leave(partial, numbers, largest, total, weighted, top, bottom, m_M, slot, part, parts, T, GROUP, WIDTH, STATS)
        tl.debug_barrier()  # everything this program wrote must come before its ticket
        ticket = tl.atomic_add(tickets + slot, 1, sem="acq_rel", scope="gpu")
        if ticket == parts - 1:
            tl.debug_barrier()
            tl.store(tickets + slot, 0)  # for the next launch
            for m in range(GROUP * T):
                join(
                    out, so_b, so_h, so_t, extremes, sinks, partial, numbers, m, slot, parts, b, head, B, n_kv,
                    T, GROUP, D, WIDTH, STATS, SINKS, JOINED, AHEAD,
                )  # fmt: skip


@triton.jit
def own_work(n_long, parts):
    """Slot (of a split head), part, number of parts, sequence and place in the layout of this program."""
    b, work = tl.program_id(0), tl.program_id(1)
    if work < n_long * parts:
        which, part, share = work // parts, work % parts, parts
        slot = b * n_long + which
    else:
        which, part, share = work - n_long * (parts - 1), 0, 1
        slot = -1
    return slot, part, share, b, which


@triton.jit
def place_of(i, b, head, heads_apart, first, firsts_apart, apart, rows, window):
    """Head, first row in sequence b, number of rows, and window of the i-th of some heads at equal distances."""
    first = tl.cast(first, tl.int64) + i * tl.cast(firsts_apart, tl.int64) + b * tl.cast(apart, tl.int64)
    return head + i * heads_apart, first, rows, window


@triton.jit
def fetch(cache, row, rows, D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr):
    """Prefetch N rows, or as many as there are, into the L2 cache: one address per line of 128 bytes."""
    LINE: tl.constexpr = 1024 // cache.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = max(1, WIDTH // LINE)
    i = tl.arange(0, N * LINES)
    at = tl.minimum(row + i // LINES, rows - 1).to(tl.int64) * D + tl.minimum(i % LINES * LINE, D - 1)
    address = (cache + at).to(tl.int64)
    tl.inline_asm_elementwise("prefetch.global.L2 [$1];", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def append(cache, new, stride, held, rows, T: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Write the T new rows, of D numbers each, to their places in the cache."""
    d_D = tl.arange(0, WIDTH)
    for i in tl.static_range(T):
        row = tl.load(new + i * stride + d_D, mask=d_D < D)
        at = ((held + i) % rows).to(tl.int64) * D
        tl.store(cache + at + d_D, row.to(cache.dtype.element_ty), mask=d_D < D)


@triton.jit
def kept_of(t, begin, kept, ids, D: tl.constexpr, SEGMENTS: tl.constexpr):
    """Numbers to keep of the new token at t: D if it is one of the first keys of its document, else 0."""
    count = tl.where(t - begin < kept, D, 0)
    if SEGMENTS:
        count = tl.where(tl.load(ids + t) >= 0, count, 0)
    return count


@triton.jit
def keep(
    cache, new, stride, held, kept, begins, ids,
    T: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, SEGMENTS: tl.constexpr,
):  # fmt: skip
    """Write those of the T new rows that are first keys of their document to the rows before the cache's first."""
    d_D = tl.arange(0, WIDTH)
    for i in tl.static_range(T):
        begin = held * 0
        if SEGMENTS:
            begin = tl.load(begins + i).to(tl.int32)
        row = tl.load(new + i * stride + d_D, mask=d_D < D)
        at = (held + i - begin - kept).to(tl.int64) * D
        count = kept_of(held + i, begin, kept, ids, D, SEGMENTS)
        tl.store(cache + at + d_D, row.to(cache.dtype.element_ty), mask=d_D < count)


@triton.jit
def leave(
    partial, numbers, largest, total, weighted, top, bottom, m_M, slot, part, parts,
    T: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """Store what a part saw for the last one to join: (slots, queries, parts, WIDTH), and four numbers for each."""
    real = m_M < GROUP * T
    at = (slot * (GROUP * T) + m_M) * parts + part
    tl.store(partial + at[:, None].to(tl.int64) * WIDTH + tl.arange(0, WIDTH)[None, :], weighted, mask=real[:, None])
    tl.store(numbers + at * 4, largest, mask=real)
    tl.store(numbers + at * 4 + 1, total, mask=real)
    if STATS:
        tl.store(numbers + at * 4 + 2, top, mask=real)
    if STATS == 2:
        tl.store(numbers + at * 4 + 3, bottom, mask=real)


@triton.jit
def join(
    out, so_b, so_h, so_t, extremes, sinks, partial, numbers, m, slot, parts, b, head, B, n_kv,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, STATS: tl.constexpr,
    SINKS: tl.constexpr, JOINED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Finish query m from what all parts stored, JOINED parts at a time, with AHEAD times as many being fetched."""
    lanes = tl.arange(0, JOINED)
    largest, total = tl.full((JOINED,), NEVER, tl.float32), tl.zeros((JOINED,), tl.float32)
    top, bottom = tl.full((JOINED,), float("-inf"), tl.float32), tl.full((JOINED,), float("inf"), tl.float32)
    weighted = tl.zeros((JOINED, WIDTH), tl.float32)
    for first in tl.range(0, parts, JOINED, loop_unroll_factor=AHEAD):
        there = lanes < parts - first
        at = (slot * (GROUP * T) + m) * parts + first + lanes
        # Bypasses the L1 cache, which may hold what an earlier launch left there.
        theirs = tl.load(numbers + at * 4, mask=there, other=NEVER, cache_modifier=".cg")
        also = tl.load(
            partial + at[:, None].to(tl.int64) * WIDTH + tl.arange(0, WIDTH)[None, :],
            mask=there[:, None], other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        above = tl.maximum(largest, theirs)
        fade, rise = tl.exp2(largest - above), tl.exp2(theirs - above)
        weight = tl.load(numbers + at * 4 + 1, mask=there, other=0.0, cache_modifier=".cg")
        total = total * fade + weight * rise
        weighted = weighted * fade[:, None] + also * rise[:, None]
        largest = above
        if STATS:
            highs = tl.load(numbers + at * 4 + 2, mask=there, other=float("-inf"), cache_modifier=".cg")
            top = tl.maximum(top, highs)
        if STATS == 2:
            lows = tl.load(numbers + at * 4 + 3, mask=there, other=float("inf"), cache_modifier=".cg")
            bottom = tl.minimum(bottom, lows)
    largest, total, weighted, top, bottom = over_lanes(largest, total, weighted, top, bottom, STATS)
    finish(
        out, so_b, so_h, so_t, extremes, sinks, largest, total, weighted, top, bottom, tl.arange(0, 1) + m,
        b, head, B, n_kv, T, GROUP, D, WIDTH, STATS, SINKS,
    )  # fmt: skip


@triton.jit
def finish(
    out, so_b, so_h, so_t, extremes, sinks, largest, total, weighted, top, bottom, m_M, b, head, B, n_kv,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, STATS: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    """Write the output rows of some queries, and the extremes of their logits: (STATS, B, heads, T)."""
    d_D = tl.arange(0, WIDTH)
    real = m_M < GROUP * T
    member, i = m_M // T, m_M % T
    whole = total
    if SINKS:  # infinite where the row's own weights are nothing beside it
        sink = tl.load(sinks + head * GROUP + tl.minimum(member, GROUP - 1))
        whole = total + tl.exp2(sink * LOG2E - largest)
    rows = weighted / tl.where(whole == 0.0, 1.0, whole)[:, None]
    at = b.to(tl.int64) * so_b + (head * GROUP + member) * so_h + i * so_t
    tl.store(
        out + at[:, None] + d_D[None, :], rows.to(out.dtype.element_ty), mask=real[:, None] & (d_D < D)[None, :]
    )  # fmt: skip
    if STATS:
        # Maxima drop a NaN, but the row's total keeps it. An infinite logit makes the total NaN too, hence the second
        # condition.
        broken = (total != total) & (largest < float("inf"))
        at = ((b * n_kv + head) * GROUP + member) * T + i
        tl.store(extremes + at, tl.where(broken, float("nan"), top), mask=real)
        if STATS == 2:
            tl.store(extremes + B * n_kv * GROUP * T + at, tl.where(broken, float("nan"), bottom), mask=real)
