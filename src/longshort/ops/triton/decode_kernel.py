"""The decoding kernel: a few new tokens of every row join the cache and attend over it, all heads in one launch.

A program takes one KV head of one batch row, with all its query heads. A head with many rows is split: part i takes
tiles i, i + parts, ... of N rows, whatever the length, which is read from the device. The part that ends last joins
them, in the order of the parts, so that two runs give equal bits. The new tokens are attended to from where they come,
and part 0 writes them into the cache: no other program may see the rows that it overwrites.

Letters: B batch, T new tokens, D head dimension; M queries of a KV head, N rows of a tile.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import LOG2E, NEVER, scores

SIZES = ("B", "n_kv", "n_long", "parts", "columns")
"""Arguments whose value must not lead to another compilation."""


@triton.jit(do_not_specialize=SIZES)
def decode_kernel(
    q, k, v, keys, values, layout, length, ids, windows, decays, slopes, out, extremes, partial, numbers, tickets,
    sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, B, n_kv, n_long, parts, columns,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr, SPLIT: tl.constexpr, STATS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, NEW: tl.constexpr, JOINED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    slot, part, share, b, which = own_work(B, n_kv, n_long, parts)
    row = layout + which * 4
    head, rows = tl.load(row).to(tl.int32), tl.load(row + 3).to(tl.int32)
    # In rows, not elements: a multiple of D is known to be aligned.
    origin = (tl.load(row + 1) + b * tl.load(row + 2)) * D
    held = tl.load(length).to(tl.int32)
    keys, values, ids = keys + origin, values + origin, ids + b.to(tl.int64) * columns
    k, v = k + b.to(tl.int64) * sk_b + head * sk_h, v + b.to(tl.int64) * sv_b + head * sv_h
    q += b.to(tl.int64) * sq_b + head * GROUP * sq_h

    if M == 1:
        largest, total, weighted, top, bottom = one_query(
            q, keys, values, ids, windows, decays, slopes, head, held, rows, part, share, scale, softcap,
            D, WIDTH, DECAY, SLOPE, SOFTCAP, SEGMENTS, STATS, N, STAGES,
        )  # fmt: skip
    else:
        largest, total, weighted, top, bottom = several_queries(
            q, sq_h, sq_t, keys, values, ids, windows, decays, slopes, head, held, rows, part, share, scale, softcap,
            T, GROUP, D, WIDTH, DECAY, SLOPE, SOFTCAP, SEGMENTS, PRECISION, STATS, M, N, STAGES,
        )  # fmt: skip
    if part == 0:
        if M == 1:
            largest, total, weighted, top, bottom = also_itself(
                q, k, v, keys, ids, held, scale, softcap, largest, total, weighted, top, bottom,
                D, WIDTH, SOFTCAP, SEGMENTS, STATS,
            )  # fmt: skip
        else:
            largest, total, weighted, top, bottom = also_each_other(
                q, sq_h, sq_t, k, sk_t, v, sv_t, keys, ids, windows, decays, slopes, head, held, scale, softcap,
                largest, total, weighted, top, bottom,
                T, GROUP, D, WIDTH, DECAY, SLOPE, SOFTCAP, SEGMENTS, PRECISION, STATS, M, NEW,
            )  # fmt: skip
        append(keys, k, sk_t, held, rows, T, D, WIDTH)
        append(values, v, sv_t, held, rows, T, D, WIDTH)

    m_M = tl.arange(0, M)
    whole = True
    if SPLIT:
        whole = share == 1
    if whole:
        finish(
            out, so_b, so_h, so_t, extremes, largest, total, weighted, top, bottom, m_M, b, head, B, n_kv,
            T, GROUP, D, WIDTH, STATS,
        )  # fmt: skip
    elif SPLIT:
        leave(partial, numbers, largest, total, weighted, top, bottom, m_M, slot, part, parts, T, GROUP, WIDTH, STATS)
        tl.debug_barrier()  # all that this program wrote comes before its ticket
        ticket = tl.atomic_add(tickets + slot, 1, sem="acq_rel", scope="gpu")
        if ticket == parts - 1:
            tl.debug_barrier()
            tl.store(tickets + slot, 0)  # for the next launch
            for m in range(GROUP * T):
                largest, total, weighted, top, bottom = joined(
                    partial, numbers, m, slot, parts, T, GROUP, WIDTH, STATS, JOINED
                )
                finish(
                    out, so_b, so_h, so_t, extremes, largest, total, weighted, top, bottom, tl.arange(0, 1) + m,
                    b, head, B, n_kv, T, GROUP, D, WIDTH, STATS,
                )  # fmt: skip


@triton.jit
def own_work(B, n_kv, n_long, parts):
    """Slot (of a split head), part, how many parts there are, batch row and place in the layout of this program."""
    pid = tl.program_id(0)
    programs = B * n_long * parts
    if pid < programs:
        slot, part, share = pid // parts, pid % parts, parts
        b, which = slot // n_long, slot % n_long
    else:
        rest = pid - programs
        slot, part, share = -1, 0, 1
        b, which = rest // (n_kv - n_long), n_long + rest % (n_kv - n_long)
    return slot, part, share, b, which


@triton.jit
def positions_of(row_N, held, rows):
    """The newest position that each row of a ring holds, negative where none was written."""
    back = (held - 1) % rows - row_N
    return held - 1 - tl.where(back < 0, back + rows, back)


@triton.jit
def one_query(
    q, keys, values, ids, windows, decays, slopes, head, held, rows, part, share, scale, softcap,
    D: tl.constexpr, WIDTH: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr,
    SEGMENTS: tl.constexpr, STATS: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What one query sees of the cache. Each of the N lanes has a softmax of its own until the end: in the loop no
    thread waits for another outside its warp, and a product by hand needs no 16 rows of a matrix unit."""
    d_D, n_N = tl.arange(0, WIDTH), tl.arange(0, N)
    q_D = tl.load(q + d_D, mask=d_D < D, other=0.0).to(keys.dtype.element_ty).to(tl.float32)
    window, decay, slope = options_of(windows, decays, slopes, head, DECAY, SLOPE)
    largest, total = tl.full((N,), NEVER, tl.float32), tl.zeros((N,), tl.float32)
    top, bottom = tl.full((N,), float("-inf"), tl.float32), tl.full((N,), float("inf"), tl.float32)
    weighted = tl.zeros((N, WIDTH), tl.float32)
    if SEGMENTS:
        ours = tl.load(ids + held)
    for row in tl.range(part * N, tl.minimum(held, rows), share * N, num_stages=STAGES):
        row_N = row + n_N
        j_N = positions_of(row_N, held, rows)
        seen = (row_N < rows) & (j_N >= 0) & (held - j_N < window)
        if SEGMENTS:
            theirs = tl.load(ids + j_N, mask=seen, other=-1)
            seen = seen & (theirs == ours) & (theirs >= 0)
        at, real = tile_of(row_N, seen, d_D, D, WIDTH)
        k_ND = tl.load(keys + at, mask=real, other=0.0).to(tl.float32)
        v_ND = tl.load(values + at, mask=real, other=0.0).to(tl.float32)
        logits = tl.sum(k_ND * q_D[None, :], 1) * scale
        x, _ = scores(logits, held, j_N, decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        x = tl.where(seen, x * LOG2E, float("-inf"))
        above = tl.maximum(largest, x)
        p, fade = tl.exp2(x - above), tl.exp2(largest - above)
        total = total * fade + p
        weighted = weighted * fade[:, None] + p[:, None] * v_ND
        largest = above
        if STATS:
            top = tl.maximum(top, tl.where(seen, logits, float("-inf")))
            bottom = tl.minimum(bottom, tl.where(seen, logits, float("inf")))
    return over_lanes(largest, total, weighted, top, bottom, STATS)


@triton.jit
def over_lanes(largest, total, weighted, top, bottom, STATS: tl.constexpr):
    """Softmaxes of N lanes, (N,) and (N, WIDTH), as one: (1,) and (1, WIDTH)."""
    above = tl.max(largest, 0, keep_dims=True)
    fade = tl.exp2(largest - above)
    total = tl.sum(total * fade, 0, keep_dims=True)
    weighted = tl.sum(weighted * fade[:, None], 0, keep_dims=True)
    if STATS:
        top, bottom = tl.max(top, 0, keep_dims=True), tl.min(bottom, 0, keep_dims=True)
    else:
        top, bottom = above, above
    return above, total, weighted, top, bottom


@triton.jit
def also_itself(
    q, k, v, keys, ids, held, scale, softcap, largest, total, weighted, top, bottom,
    D: tl.constexpr, WIDTH: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """The one query also sees its own key, at distance 0, as the cache will hold it."""
    d_D = tl.arange(0, WIDTH)
    dtype = keys.dtype.element_ty
    q_D = tl.load(q + d_D, mask=d_D < D, other=0.0).to(dtype).to(tl.float32)
    k_D = tl.load(k + d_D, mask=d_D < D, other=0.0).to(dtype).to(tl.float32)
    v_D = tl.load(v + d_D, mask=d_D < D, other=0.0).to(dtype).to(tl.float32)
    logits = tl.sum((k_D * q_D)[None, :], 1) * scale
    x = logits
    if SOFTCAP:
        x = softcap * (2.0 * tl.sigmoid(2.0 * x / softcap) - 1.0)
    x = x * LOG2E
    if SEGMENTS:
        seen = tl.load(ids + held) >= 0
        x, v_D = tl.where(seen, x, float("-inf")), tl.where(seen, v_D, 0.0)
    if STATS:
        here = x > float("-inf")
        here = here | (x != x)
        top = tl.maximum(top, tl.where(here, logits, float("-inf")))
        bottom = tl.minimum(bottom, tl.where(here, logits, float("inf")))
    above = tl.maximum(largest, x)
    p, fade = tl.exp2(x - above), tl.exp2(largest - above)
    return above, total * fade + p, weighted * fade[:, None] + p[:, None] * v_D[None, :], top, bottom


@triton.jit
def several_queries(
    q, sq_h, sq_t, keys, values, ids, windows, decays, slopes, head, held, rows, part, share, scale, softcap,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr, STATS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What the queries of a KV head see of the cache, by the matrix units."""
    d_D, n_N = tl.arange(0, WIDTH), tl.arange(0, N)
    q_MD, t_M, window, decay, slope, ours = queries(
        q, sq_h, sq_t, keys, ids, windows, decays, slopes, head, held, T, GROUP, D, WIDTH, DECAY, SLOPE, SEGMENTS, M
    )
    widest = tl.max(window, 0)
    largest, total = tl.full((M,), NEVER, tl.float32), tl.zeros((M,), tl.float32)
    top, bottom = tl.full((M,), float("-inf"), tl.float32), tl.full((M,), float("inf"), tl.float32)
    weighted = tl.zeros((M, WIDTH), tl.float32)
    for row in tl.range(part * N, tl.minimum(held, rows), share * N, num_stages=STAGES):
        row_N = row + n_N
        j_N = positions_of(row_N, held, rows)
        there = (row_N < rows) & (j_N >= 0) & (held - j_N < widest)
        theirs = j_N
        if SEGMENTS:
            theirs = tl.load(ids + j_N, mask=there, other=-1)
            there = there & (theirs >= 0)
        at, real = tile_of(row_N, there, d_D, D, WIDTH)
        k_ND = tl.load(keys + at, mask=real, other=0.0)
        v_ND = tl.load(values + at, mask=real, other=0.0)
        largest, total, weighted, top, bottom = see(
            q_MD, k_ND, v_ND, t_M, j_N, there, ours, theirs, window, decay, slope, scale, softcap,
            largest, total, weighted, top, bottom, DECAY, SLOPE, SOFTCAP, SEGMENTS, PRECISION, STATS,
        )  # fmt: skip
    return largest, total, weighted, top, bottom


@triton.jit
def also_each_other(
    q, sq_h, sq_t, k, sk_t, v, sv_t, keys, ids, windows, decays, slopes, head, held, scale, softcap,
    largest, total, weighted, top, bottom,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr, STATS: tl.constexpr, M: tl.constexpr, NEW: tl.constexpr,
):  # fmt: skip
    """The queries also see the new keys, as the cache will hold them."""
    d_D, n_N = tl.arange(0, WIDTH), tl.arange(0, NEW)
    q_MD, t_M, window, decay, slope, ours = queries(
        q, sq_h, sq_t, keys, ids, windows, decays, slopes, head, held, T, GROUP, D, WIDTH, DECAY, SLOPE, SEGMENTS, M
    )
    there = n_N < T
    theirs = n_N
    if SEGMENTS:
        theirs = tl.load(ids + held + n_N, mask=there, other=-1)
        there = there & (theirs >= 0)
    real = there[:, None] & (d_D < D)[None, :]
    dtype = keys.dtype.element_ty
    k_ND = tl.load(k + n_N[:, None] * sk_t + d_D[None, :], mask=real, other=0.0).to(dtype)
    v_ND = tl.load(v + n_N[:, None] * sv_t + d_D[None, :], mask=real, other=0.0).to(dtype)
    return see(
        q_MD, k_ND, v_ND, t_M, held + n_N, there, ours, theirs, window, decay, slope, scale, softcap,
        largest, total, weighted, top, bottom, DECAY, SLOPE, SOFTCAP, SEGMENTS, PRECISION, STATS,
    )  # fmt: skip


@triton.jit
def queries(
    q, sq_h, sq_t, keys, ids, windows, decays, slopes, head, held,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SEGMENTS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """The queries of a KV head, (M, WIDTH), head by head; their positions, windows, decays, slopes and segments."""
    d_D, m_M = tl.arange(0, WIDTH), tl.arange(0, M)
    member = tl.minimum(m_M // T, GROUP - 1)
    real = (m_M < GROUP * T)[:, None] & (d_D < D)[None, :]
    q_MD = tl.load(q + member[:, None] * sq_h + (m_M % T)[:, None] * sq_t + d_D[None, :], mask=real, other=0.0)
    t_M = held + m_M % T
    window, decay, slope = options_of(windows, decays, slopes, head * GROUP + member, DECAY, SLOPE)
    ours = t_M
    if SEGMENTS:
        ours = tl.load(ids + t_M)
    return q_MD.to(keys.dtype.element_ty), t_M, window, decay, slope, ours


@triton.jit
def options_of(windows, decays, slopes, head, DECAY: tl.constexpr, SLOPE: tl.constexpr):
    """Window, decay and slope of query heads."""
    window = tl.load(windows + head)
    decay, slope = 0.0, 0.0
    if DECAY:
        decay = tl.load(decays + head)
    if SLOPE:
        slope = tl.load(slopes + head)
    return window, decay, slope


@triton.jit
def tile_of(row_N, there, d_D, D: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets (N, WIDTH) of rows of the cache, and which of them to read."""
    real = there[:, None]
    if WIDTH != D:
        real = real & (d_D < D)[None, :]
    return row_N.to(tl.int64)[:, None] * D + d_D[None, :], real


@triton.jit
def see(
    q_MD, k_ND, v_ND, t_M, j_N, there, ours, theirs, window, decay, slope, scale, softcap,
    largest, total, weighted, top, bottom,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """The state of M queries after one more tile of keys."""
    logits = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * scale
    if DECAY:
        decay = decay[:, None]
    if SLOPE:
        slope = slope[:, None]
    x, _ = scores(logits, t_M[:, None], j_N[None, :], decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
    distance = t_M[:, None] - j_N[None, :]
    seen = there[None, :] & (distance >= 0) & (distance < window[:, None])
    if SEGMENTS:
        seen = seen & (ours[:, None] == theirs[None, :])
    x = tl.where(seen, x * LOG2E, float("-inf"))
    above = tl.maximum(largest, tl.max(x, 1))
    p, fade = tl.exp2(x - above[:, None]), tl.exp2(largest - above)
    total = total * fade + tl.sum(p, 1)
    weighted = tl.dot(p.to(v_ND.dtype), v_ND, weighted * fade[:, None], input_precision=PRECISION)
    if STATS:
        top = tl.maximum(top, tl.max(tl.where(seen, logits, float("-inf")), 1))
        bottom = tl.minimum(bottom, tl.min(tl.where(seen, logits, float("inf")), 1))
    return above, total, weighted, top, bottom


@triton.jit
def append(cache, new, stride, held, rows, T: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Write the T new rows, which are as long as D, where they belong."""
    d_D = tl.arange(0, WIDTH)
    for i in tl.static_range(T):
        row = tl.load(new + i * stride + d_D, mask=d_D < D)
        at = ((held + i) % rows).to(tl.int64) * D
        tl.store(cache + at + d_D, row.to(cache.dtype.element_ty), mask=d_D < D)


@triton.jit
def leave(
    partial, numbers, largest, total, weighted, top, bottom, m_M, slot, part, parts,
    T: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """Leave what a part saw for the last one: (slots, queries, parts, WIDTH), and four numbers of each."""
    real = m_M < GROUP * T
    at = (slot * (GROUP * T) + m_M) * parts + part
    tl.store(partial + at[:, None].to(tl.int64) * WIDTH + tl.arange(0, WIDTH)[None, :], weighted, mask=real[:, None])
    tl.store(numbers + at * 4, largest, mask=real)
    tl.store(numbers + at * 4 + 1, total, mask=real)
    if STATS:
        tl.store(numbers + at * 4 + 2, top, mask=real)
        tl.store(numbers + at * 4 + 3, bottom, mask=real)


@triton.jit
def joined(
    partial, numbers, m, slot, parts,
    T: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, STATS: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """Query m from what all parts left, JOINED of them at a time."""
    lanes = tl.arange(0, JOINED)
    largest, total = tl.full((JOINED,), NEVER, tl.float32), tl.zeros((JOINED,), tl.float32)
    top, bottom = tl.full((JOINED,), float("-inf"), tl.float32), tl.full((JOINED,), float("inf"), tl.float32)
    weighted = tl.zeros((JOINED, WIDTH), tl.float32)
    for first in range(0, parts, JOINED):
        there = lanes < parts - first
        at = (slot * (GROUP * T) + m) * parts + first + lanes
        # Past the first-level cache, which may hold what an earlier launch left.
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
            lows = tl.load(numbers + at * 4 + 3, mask=there, other=float("inf"), cache_modifier=".cg")
            top, bottom = tl.maximum(top, highs), tl.minimum(bottom, lows)
    return over_lanes(largest, total, weighted, top, bottom, STATS)


@triton.jit
def finish(
    out, so_b, so_h, so_t, extremes, largest, total, weighted, top, bottom, m_M, b, head, B, n_kv,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """Write the rows of some queries, and the extremes of their logits: (2, B, heads, T)."""
    d_D = tl.arange(0, WIDTH)
    real = m_M < GROUP * T
    member, i = m_M // T, m_M % T
    rows = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    at = b.to(tl.int64) * so_b + (head * GROUP + member) * so_h + i * so_t
    tl.store(
        out + at[:, None] + d_D[None, :], rows.to(out.dtype.element_ty), mask=real[:, None] & (d_D < D)[None, :]
    )  # fmt: skip
    if STATS:
        # Maxima drop a NaN, but it is in the row's total; so it is after an infinite logit, no NaN itself.
        broken = (total != total) & (largest < float("inf"))
        at = ((b * n_kv + head) * GROUP + member) * T + i
        tl.store(extremes + at, tl.where(broken, float("nan"), top), mask=real)
        tl.store(extremes + B * n_kv * GROUP * T + at, tl.where(broken, float("nan"), bottom), mask=real)
