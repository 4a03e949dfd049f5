"""The forward kernel: output, log-sum-exp and logit extremes of heads of any reach, in one launch.

STATS is how many extremes are wanted: 0, 1 (the largest, which without decay, softcap and slope the softmax finds
anyway) or 2.

A program takes M query rows of one head and walks over the keys they see, N at a time. While the last rows of a single
long head are computed, most of the GPU would be idle: such walks are cut into parts, which a second kernel joins.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import LN2, LOG2E, NEVER, fading, head_options, scores, visible
from longshort.ops.triton.segment_ranges import meeting
from longshort.ops.triton.walks import (
    SIZES,
    also_first_keys,
    at_edge,
    keys_of,
    load_rows,
    on_side,
    own_part,
    own_tile,
    partial_rows,
    store_rows,
)


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    q, k, v, out, lse, extremes, partial, numbers, heads, windows, decays, slopes, segments, ranges, firsts,
    places, sinks,
    sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, B, H, T, S, n_long, parts,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FIRST: tl.constexpr, SKIP: tl.constexpr, FOLD: tl.constexpr, FADE: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr, SPLIT: tl.constexpr, STATS: tl.constexpr, SINKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    tile, part, slot, b, h = own_tile(tl.cdiv(T, M), n_long, parts, heads, SPLIT, True)
    window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
    ids = segments + b.to(tl.int64) * S
    row = tile * M
    t_M = row + S - T + tl.arange(0, M)
    largest, total, weighted, top, bottom = nothing_seen(M, WIDTH)
    start, stop = keys_of(row, window, T, S, M, N, CAUSAL)
    first, lead, shift = 0, 0, 0
    if FIRST:
        first = tl.load(firsts + h)
        lead, covered, stop = also_first_keys(places, b, row, first, start, stop, B, T, S, M, N, CAUSAL, SEGMENTS)
    if SKIP:
        start, stop = meeting(ranges, b, row + S - T, start, stop, 0, S, M, N)
    near = start
    if FIRST:  # the walk goes over their tiles, and then jumps to the window's
        start = start - covered
        shift = start - lead
    if SPLIT:
        start, stop = own_part(start, stop, part, parts, slot, N)
    q_MD = load_rows(q, sq_b, sq_h, sq_t, b, h, row, T, M, D, WIDTH, TMA)
    for SIDE in tl.static_range(1, -2 if FADE and not CAUSAL else 0, -1):  # keys before queries, both, after
        begin, end = start, stop
        if FADE and not CAUSAL:
            begin, end = on_side(start, stop, row + S - T, SIDE, M, N)
        for step in tl.range(begin, end, N, num_stages=STAGES):
            key = step
            if FIRST:
                key = tl.where(step < near, step - shift, step)
            k_ND = load_rows(k, sk_b, sk_h, sk_t, b, h // GROUP, key, S, N, D, WIDTH, TMA)
            v_ND = load_rows(v, sv_b, sv_h, sv_t, b, h // GROUP, key, S, N, D, WIDTH, TMA)
            largest, total, weighted, top, bottom = see(
                q_MD, k_ND, v_ND, largest, total, weighted, top, bottom,
                t_M, key + tl.arange(0, N), key, at_edge(row, key, window, T, S, M, N, CAUSAL),
                ids, window, first, places + b.to(tl.int64) * S, decay, slope, scale, softcap, S,
                CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, FOLD, FADE * SIDE, STATS, PRECISION,
            )  # fmt: skip
    total, bottom = tl.sum(total, 1), tl.min(bottom, 1)
    if SPLIT and slot >= 0:
        at, real = partial_rows(partial, slot, part, parts, T, row, M, WIDTH)
        tl.store(at, weighted, mask=real)
        at, each = numbers + (slot * parts + part).to(tl.int64) * T + row, B.to(tl.int64) * n_long * parts * T
        rows = tl.arange(0, M)
        tl.store(at + rows, largest, mask=rows < T - row)
        tl.store(at + each + rows, total, mask=rows < T - row)
        if STATS:
            tl.store(at + 2 * each + rows, top, mask=rows < T - row)
        if STATS == 2:
            tl.store(at + 3 * each + rows, bottom, mask=rows < T - row)
    else:
        finish(
            out, so_b, so_h, so_t, lse, extremes, sinks, largest, total, weighted, top, bottom,
            tile, b, h, scale, B, H, T, D, WIDTH, M, FOLD, STATS, SINKS,
        )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def join_parts_kernel(
    out, lse, extremes, partial, numbers, heads, sinks, so_b, so_h, so_t, scale, B, H, T, n_long, parts,
    D: tl.constexpr, WIDTH: tl.constexpr, FOLD: tl.constexpr, STATS: tl.constexpr, SINKS: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Compute the rows of long heads from what their parts saw."""
    tile, slot = tl.program_id(0), tl.program_id(1)
    b, h = slot // n_long, tl.load(heads + slot % n_long)
    largest, total, weighted, top, bottom = nothing_seen(M, WIDTH)
    total, bottom = tl.sum(total, 1), tl.min(bottom, 1)
    rows = tile * M + tl.arange(0, M)
    factor = 1.0
    if FOLD:
        factor = scale * LOG2E
    step = B.to(tl.int64) * n_long * parts * T
    for part in range(parts):
        at, real = partial_rows(partial, slot, part, parts, T, tile * M, M, WIDTH)
        also = tl.load(at, mask=real, other=0.0)
        at = numbers + (slot * parts + part).to(tl.int64) * T + rows
        theirs = tl.load(at, mask=rows < T, other=NEVER)
        above = tl.maximum(largest, theirs)
        fade, rise = tl.exp2((largest - above) * factor), tl.exp2((theirs - above) * factor)
        total = total * fade + tl.load(at + step, mask=rows < T, other=0.0) * rise
        weighted = weighted * fade[:, None] + also * rise[:, None]
        largest = above
        if STATS:
            top = tl.maximum(top, tl.load(at + 2 * step, mask=rows < T, other=float("-inf")))
        if STATS == 2:
            bottom = tl.minimum(bottom, tl.load(at + 3 * step, mask=rows < T, other=float("inf")))
    finish(
        out, so_b, so_h, so_t, lse, extremes, sinks, largest, total, weighted, top, bottom,
        tile, b, h, scale, B, H, T, D, WIDTH, M, FOLD, STATS, SINKS,
    )  # fmt: skip


@triton.jit
def nothing_seen(M: tl.constexpr, WIDTH: tl.constexpr):
    """Largest score, total weight (by lane), weighted values, highest and lowest logit (by lane) of M rows."""
    largest, top = tl.full((M,), NEVER, tl.float32), tl.full((M,), float("-inf"), tl.float32)
    total, bottom = tl.zeros((M, 8), tl.float32), tl.full((M, 8), float("inf"), tl.float32)
    return largest, total, tl.zeros((M, WIDTH), tl.float32), top, bottom


@triton.jit
def finish(
    out, so_b, so_h, so_t, lse, extremes, sinks, largest, total, weighted, top, bottom, tile, b, h, scale, B, H, T,
    D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, FOLD: tl.constexpr, STATS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Write the rows of a tile, and the extremes of their logits."""
    rows = tile * M + tl.arange(0, M)
    blind = total == 0.0
    share = 1.0 / tl.where(blind, 1.0, total)  # one division per row, not per element
    log_total = tl.log2(tl.where(blind, 1.0, total))
    if FOLD:
        row_lse = largest * scale + log_total * LN2
        top, bottom = largest * scale, bottom * scale
    else:
        row_lse = (largest + log_total) * LN2
    if SINKS:
        sink = tl.load(sinks + h)
        above = tl.maximum(row_lse, sink)
        ours, theirs = tl.exp2((row_lse - above) * LOG2E), tl.exp2((sink - above) * LOG2E)
        share = share * (ours / (ours + theirs))
        row_lse = above + tl.log2(ours + theirs) * LN2
    store_rows(out, so_b, so_h, so_t, b, h, tile * M, T, weighted * share[:, None], M, D, WIDTH)
    tl.store(lse + (b * H + h).to(tl.int64) * T + rows, tl.where(blind, float("-inf"), row_lse), mask=rows < T)
    if STATS:
        counts = (rows < T) & (total != 0.0)
        top = tl.max(tl.where(counts, top, float("-inf")), 0)
        # tl.max and tl.min drop a NaN, but the row's total keeps it. An infinite logit makes the total NaN too, hence
        # the second condition.
        broken = tl.max(((total != total) & (largest < float("inf"))).to(tl.int32), 0) > 0
        at = (b * H + h) * tl.cdiv(T, M) + tile
        tl.store(extremes + at, tl.where(broken, float("nan"), top))
        if STATS == 2:
            bottom = tl.min(tl.where(counts, bottom, float("inf")), 0)
            tl.store(extremes + B * H * tl.cdiv(T, M) + at, tl.where(broken, float("nan"), bottom))


@triton.jit
def see(
    q_MD, k_ND, v_ND, largest, total, weighted, top, bottom, t_M, j_N, key, edge,
    ids, window, first, ranks, decay, slope, scale, softcap, S,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FIRST: tl.constexpr, FOLD: tl.constexpr, FADE: tl.constexpr, STATS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state of the rows after one more tile of keys; only an edge tile needs a mask."""
    logits = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
    unit = scale if FADE else 1.0  # the unit of the logits' extremes
    if FOLD or FADE:
        x = logits
    else:
        logits = logits * scale
        x, _ = scores(logits, t_M[:, None], j_N[None, :], decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        x = x * LOG2E
    if SEGMENTS or edge:
        seen = visible(t_M[:, None], j_N[None, :], window, ids, first, ranks, S, CAUSAL, SEGMENTS, FIRST)
        if STATS == 2:
            bottom = tl.minimum(bottom, tl.min(by_lane(tl.where(seen, logits, float("inf"))), 1) * unit)
        if STATS and not FOLD:
            top = tl.maximum(top, tl.max(tl.where(seen, logits, float("-inf")), 1) * unit)
        x = tl.where(seen, x, float("-inf"))
    elif STATS and not FOLD:
        if STATS == 2:
            bottom = tl.minimum(bottom, tl.min(by_lane(logits), 1) * unit)
        top = tl.maximum(top, tl.max(logits, 1) * unit)
    if FADE:
        fade_M, fade_N = fading(t_M, j_N, key, decay, FADE)
        factor = tl.maximum(fade_M * (scale * LOG2E), 1e-30)  # 0 would turn a masked score into NaN
        x = x * fade_N[None, :]
        above = tl.maximum(largest, tl.max(x, 1) * factor)
        y = x * factor[:, None] - above[:, None]
        factor = 1.0
    else:
        factor = scale * LOG2E if FOLD else 1.0
        above = tl.maximum(largest, tl.max(x, 1))
        y = x * factor - (above * factor)[:, None]
    if STATS == 2 and FOLD and not SEGMENTS:
        # y <= 0, so its bits grow as it falls. Hopper finds the largest of three unsigned numbers in one instruction.
        lowest = tl.max(by_lane(y.to(tl.uint32, bitcast=True)), 1).to(tl.float32, bitcast=True)
        bottom = tl.minimum(bottom, tl.where(edge, float("inf"), lowest * (1.0 / factor) + above[:, None]))
    p = tl.exp2(y)
    fade = tl.exp2((largest - above) * factor)
    total = total * fade[:, None] + tl.sum(by_lane(p), 1)
    weighted = tl.dot(p.to(v_ND.dtype), v_ND, weighted * fade[:, None], input_precision=PRECISION)
    return above, total, weighted, top, bottom


@triton.jit
def by_lane(x):
    """(M, N) -> (M, N/8, 8): a thread holds a pair of every 8 columns, so sums over the middle stay within a thread."""
    return tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8))


@triton.jit(do_not_specialize=SIZES)
def reduce_extremes_kernel(extremes, high, low, B, H, tiles, STATS: tl.constexpr, BLOCK: tl.constexpr):
    """(STATS, B, H, tiles) -> (H,) maxima and, if STATS is 2, minima; a NaN stays visible."""
    h, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    top, bottom = tl.full((BLOCK,), float("-inf"), tl.float32), tl.full((BLOCK,), float("inf"), tl.float32)
    broken = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, B * tiles, BLOCK):
        b, tile = (i + lanes) // tiles, (i + lanes) % tiles
        at = extremes + (b * H + h) * tiles + tile
        highs = tl.load(at, mask=b < B, other=float("-inf"))
        top, broken = tl.maximum(top, highs), broken | (highs != highs).to(tl.int32)
        if STATS == 2:
            bottom = tl.minimum(bottom, tl.load(at + B * H * tiles, mask=b < B, other=float("inf")))
    bad = tl.max(broken, 0) > 0
    tl.store(high + h, tl.where(bad, float("nan"), tl.max(top, 0)))
    if STATS == 2:
        tl.store(low + h, tl.where(bad, float("nan"), tl.min(bottom, 0)))
