"""The walks of the decoding kernel: what the queries of one KV head see of the cache and of the new tokens.

A state holds the largest score, total weight, weighted values, and highest and lowest logit of each query; of the last
two, STATS says how many are wanted, the highest first.
Letters: T new tokens, D head dimension; M queries of a KV head, N rows of a tile.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import LOG2E, NEVER, rates_of, scores


@triton.jit
def positions_of(row_N, held, rows):
    """The newest position that each row of a ring holds, negative where none was written."""
    back = (held - 1) % rows - row_N
    return held - 1 - tl.where(back < 0, back + rows, back)


@triton.jit
def first_rows(row_N, held, rows, kept, begin):
    """Positions of rows, those before row 0 being the first keys of the document that begins at `begin`, and whether
    they hold something that no other row holds."""
    j_N, early = positions_of(row_N, held, rows), row_N < 0
    j_N = tl.where(early, begin + row_N + kept, j_N)
    in_ring = (row_N < rows) & (j_N >= 0) & ((j_N < begin) | (j_N >= begin + kept))
    return j_N, (early & (j_N < held)) | ((row_N >= 0) & in_ring)


@triton.jit
def one_query(
    q_D, k, v, keys, values, ids, window, firsts, kept, begin, decays, slopes, head, held, rows, part, share, scale,
    softcap,
    D: tl.constexpr, WIDTH: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr,
    SEGMENTS: tl.constexpr, FIRST: tl.constexpr, STATS: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """What one query sees of the cache and, in part 0, its own key. Each of the N lanes keeps its own softmax until the
    end: in the loop no thread waits for another outside its warp, and a product without the matrix units does not need
    their 16 rows."""
    d_D, n_N = tl.arange(0, WIDTH), tl.arange(0, N)
    decay, slope = rates_of(decays, slopes, head, DECAY, SLOPE)
    largest, total = tl.full((N,), NEVER, tl.float32), tl.zeros((N,), tl.float32)
    top, bottom = tl.full((N,), float("-inf"), tl.float32), tl.full((N,), float("inf"), tl.float32)
    weighted = tl.zeros((N, WIDTH), tl.float32)
    if SEGMENTS:
        ours = tl.load(ids + held)
    stop, first = tl.minimum(held, rows), 0
    if FIRST:
        stop, first = stop + kept, tl.load(firsts + head)
    for row in tl.range(part * N, stop, share * N, num_stages=STAGES):
        row_N = row + n_N
        if FIRST:
            row_N = row_N - kept
            j_N, there = first_rows(row_N, held, rows, kept, begin)
            seen = there & ((held - j_N < window) | ((j_N >= begin) & (j_N - begin < first)))
        else:
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
        if STATS == 2:
            bottom = tl.minimum(bottom, tl.where(seen, logits, float("inf")))
    if part == 0:
        largest, total, weighted, top, bottom = also_itself(
            q_D, k, v, keys, ids, held, scale, softcap, largest, total, weighted, top, bottom,
            D, WIDTH, SOFTCAP, SEGMENTS, STATS, N, PIECES,
        )  # fmt: skip
    return over_lanes(largest, total, weighted, top, bottom, STATS)


@triton.jit
def over_lanes(largest, total, weighted, top, bottom, STATS: tl.constexpr):
    """Merge the softmaxes of N lanes, (N,) and (N, WIDTH), into one: (1,) and (1, WIDTH)."""
    above = tl.max(largest, 0, keep_dims=True)
    fade = tl.exp2(largest - above)
    total = tl.sum(total * fade, 0, keep_dims=True)
    weighted = tl.sum(weighted * fade[:, None], 0, keep_dims=True)
    top = tl.max(top, 0, keep_dims=True) if STATS else above
    bottom = tl.min(bottom, 0, keep_dims=True) if STATS == 2 else above
    return above, total, weighted, top, bottom


@triton.jit
def also_itself(
    q_D, k, v, keys, ids, held, scale, softcap, largest, total, weighted, top, bottom,
    D: tl.constexpr, WIDTH: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr, STATS: tl.constexpr,
    N: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Let the one query see its own key, at distance 0, as the cache will hold it. It counts in the first of N lanes,
    but all lanes compute it, or threads of several warps would have to synchronise."""
    seen = tl.arange(0, N) == 0
    if SEGMENTS:
        seen = seen & (tl.load(ids + held) >= 0)
    dtype = keys.dtype.element_ty
    k_D = row_of(k, D, WIDTH, PIECES).to(dtype).to(tl.float32)
    v_D = row_of(v, D, WIDTH, PIECES).to(dtype).to(tl.float32)
    logits = tl.sum(tl.broadcast_to((k_D * q_D)[None, :], (N, WIDTH)), 1) * scale
    x, _ = scores(logits, held, held, 0.0, 0.0, softcap, False, False, SOFTCAP)
    x = tl.where(seen, x * LOG2E, float("-inf"))
    if STATS:
        top = tl.maximum(top, tl.where(seen, logits, float("-inf")))
    if STATS == 2:
        bottom = tl.minimum(bottom, tl.where(seen, logits, float("inf")))
    above = tl.maximum(largest, x)
    p, fade = tl.exp2(x - above), tl.exp2(largest - above)
    v_ND = tl.where(seen[:, None], v_D[None, :], 0.0)
    return above, total * fade + p, weighted * fade[:, None] + p[:, None] * v_ND, top, bottom


@triton.jit
def row_of(x, count, WIDTH: tl.constexpr, PIECES: tl.constexpr):
    """The `count` numbers from a pointer on, then zeros. Triton loads fewer numbers than threads wherever they are
    needed; it loads more only once and exchanges them through shared memory. That comes before the walk, whose first
    copies would have to wait for it."""
    if PIECES == 1:
        row = piece_of(x, count, 0, WIDTH, PIECES)
    elif PIECES == 2:
        row = tl.interleave(piece_of(x, count, 0, WIDTH, PIECES), piece_of(x, count, 1, WIDTH, PIECES))
    else:
        even = tl.interleave(piece_of(x, count, 0, WIDTH, PIECES), piece_of(x, count, 2, WIDTH, PIECES))
        odd = tl.interleave(piece_of(x, count, 1, WIDTH, PIECES), piece_of(x, count, 3, WIDTH, PIECES))
        row = tl.interleave(even, odd)
    return row


@triton.jit
def piece_of(x, count, i, WIDTH: tl.constexpr, PIECES: tl.constexpr):
    """Numbers i, i + PIECES, ..."""
    at = tl.arange(0, WIDTH // PIECES) * PIECES + i
    return tl.load(x + at, mask=at < count, other=0.0)


@triton.jit
def several_queries(
    q, sq_h, sq_t, keys, values, ids, windows, firsts, kept, begins, begin, decays, slopes, head, held, rows, part,
    share, scale, softcap,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr, STATS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """What the queries of a KV head see of the cache, computed by the matrix units."""
    d_D, n_N = tl.arange(0, WIDTH), tl.arange(0, N)
    q_MD, t_M, window, decay, slope, ours = queries(
        q, sq_h, sq_t, keys, ids, windows, decays, slopes, head, held, T, GROUP, D, WIDTH, DECAY, SLOPE, SEGMENTS, M
    )
    widest = tl.max(window, 0)
    stop, first, begin_M = tl.minimum(held, rows), window, t_M
    if FIRST:
        stop = stop + kept
        first, begin_M = firsts_of(firsts, begins, head, T, GROUP, SEGMENTS, M)
    largest, total = tl.full((M,), NEVER, tl.float32), tl.zeros((M,), tl.float32)
    top, bottom = tl.full((M,), float("-inf"), tl.float32), tl.full((M,), float("inf"), tl.float32)
    weighted = tl.zeros((M, WIDTH), tl.float32)
    for row in tl.range(part * N, stop, share * N, num_stages=STAGES):
        row_N = row + n_N
        if FIRST:
            row_N = row_N - kept
            j_N, there = first_rows(row_N, held, rows, kept, begin)
        else:
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
            q_MD, k_ND, v_ND, t_M, j_N, there, ours, theirs, window, first, begin_M, decay, slope, scale, softcap,
            largest, total, weighted, top, bottom, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, PRECISION, STATS,
        )  # fmt: skip
    return largest, total, weighted, top, bottom


@triton.jit
def also_each_other(
    q, sq_h, sq_t, k, sk_t, v, sv_t, keys, ids, windows, firsts, begins, decays, slopes, head, held, scale, softcap,
    largest, total, weighted, top, bottom,
    T: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr, FIRST: tl.constexpr,
    PRECISION: tl.constexpr, STATS: tl.constexpr, M: tl.constexpr, NEW: tl.constexpr,
):  # fmt: skip
    """Let the queries see the new keys, as the cache will hold them."""
    d_D, n_N = tl.arange(0, WIDTH), tl.arange(0, NEW)
    q_MD, t_M, window, decay, slope, ours = queries(
        q, sq_h, sq_t, keys, ids, windows, decays, slopes, head, held, T, GROUP, D, WIDTH, DECAY, SLOPE, SEGMENTS, M
    )
    there = n_N < T
    theirs = n_N
    first, begin_M = window, t_M
    if FIRST:
        first, begin_M = firsts_of(firsts, begins, head, T, GROUP, SEGMENTS, M)
    if SEGMENTS:
        theirs = tl.load(ids + held + n_N, mask=there, other=-1)
        there = there & (theirs >= 0)
    real = there[:, None] & (d_D < D)[None, :]
    dtype = keys.dtype.element_ty
    k_ND = tl.load(k + n_N[:, None] * sk_t + d_D[None, :], mask=real, other=0.0).to(dtype)
    v_ND = tl.load(v + n_N[:, None] * sv_t + d_D[None, :], mask=real, other=0.0).to(dtype)
    return see(
        q_MD, k_ND, v_ND, t_M, held + n_N, there, ours, theirs, window, first, begin_M, decay, slope, scale, softcap,
        largest, total, weighted, top, bottom, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, PRECISION, STATS,
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
    window = tl.load(windows + head * GROUP + member)
    decay, slope = rates_of(decays, slopes, head * GROUP + member, DECAY, SLOPE)
    ours = t_M
    if SEGMENTS:
        ours = tl.load(ids + t_M)
    return q_MD.to(keys.dtype.element_ty), t_M, window, decay, slope, ours


@triton.jit
def firsts_of(
    firsts, begins, head, T: tl.constexpr, GROUP: tl.constexpr, SEGMENTS: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Of the queries of a KV head, (M,): how many first keys they see, and where their documents begin."""
    m_M = tl.arange(0, M)
    first = tl.load(firsts + head * GROUP + tl.minimum(m_M // T, GROUP - 1))
    begin_M = tl.zeros((M,), tl.int32)
    if SEGMENTS:
        begin_M = tl.load(begins + m_M % T).to(tl.int32)
    return first, begin_M


@triton.jit
def tile_of(row_N, there, d_D, D: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets (N, WIDTH) of rows of the cache, and which to read."""
    real = there[:, None]
    if WIDTH != D:
        real = real & (d_D < D)[None, :]
    return row_N.to(tl.int64)[:, None] * D + d_D[None, :], real


@triton.jit
def see(
    q_MD, k_ND, v_ND, t_M, j_N, there, ours, theirs, window, first, begin_M, decay, slope, scale, softcap,
    largest, total, weighted, top, bottom,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr, FIRST: tl.constexpr,
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
    within = distance < window[:, None]
    if FIRST:
        rank = j_N[None, :] - begin_M[:, None]
        within = within | ((rank >= 0) & (rank < first[:, None]))
    seen = there[None, :] & (distance >= 0) & within
    if SEGMENTS:
        seen = seen & (ours[:, None] == theirs[None, :])
    x = tl.where(seen, x * LOG2E, float("-inf"))
    above = tl.maximum(largest, tl.max(x, 1))
    p, fade = tl.exp2(x - above[:, None]), tl.exp2(largest - above)
    total = total * fade + tl.sum(p, 1)
    weighted = tl.dot(p.to(v_ND.dtype), v_ND, weighted * fade[:, None], input_precision=PRECISION)
    if STATS:
        top = tl.maximum(top, tl.max(tl.where(seen, logits, float("-inf")), 1))
    if STATS == 2:
        bottom = tl.minimum(bottom, tl.min(tl.where(seen, logits, float("inf")), 1))
    return above, total, weighted, top, bottom
