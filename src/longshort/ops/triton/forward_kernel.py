"""The forward kernel: output, log-sum-exp and logit extremes of heads of any reach, in one launch.

A program takes query rows of one head. Long heads (global, or with a window of many tiles) come first, their longest
rows first: one tile of rows a program, in a loop over the keys it sees. A program of a short head takes a run of row
tiles; the few key tiles that each sees are unrolled, so the loop over row tiles fetches the next one's while this one
is computed.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import (
    LN2,
    LOG2E,
    NEVER,
    SIZES,
    head_options,
    load_rows,
    scores,
    slab,
    store_rows,
    visible,
    visible_range,
)


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    q, k, v, out, lse, extremes, heads, windows, decays, slopes, segments,
    sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, B, H, T, S, n_long, n_short, n_partial,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FOLD: tl.constexpr, STATS: tl.constexpr, PRECISION: tl.constexpr,
    LONG: tl.constexpr, LONG_M: tl.constexpr, LONG_N: tl.constexpr, LONG_STAGES: tl.constexpr,
    SHORT: tl.constexpr, SHORT_M: tl.constexpr, SHORT_N: tl.constexpr, SHORT_STAGES: tl.constexpr,
    RUN: tl.constexpr, TILES: tl.constexpr, AHEAD: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    past = S - T
    columns = tl.arange(0, WIDTH)
    long_tiles = tl.cdiv(T, LONG_M)
    long_programs = long_tiles * B * n_long
    if LONG and (not SHORT or pid < long_programs):
        tile = long_tiles - 1 - pid // (B * n_long)
        b, h = pid % (B * n_long) // n_long, tl.load(heads + pid % n_long)
        window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
        ids = segments + b.to(tl.int64) * S
        keys, values = slab(k, sk_b, sk_h, b, h // GROUP), slab(v, sv_b, sv_h, b, h // GROUP)
        row = tile * LONG_M
        t_M = row + past + tl.arange(0, LONG_M)
        q_MD = load_rows(slab(q, sq_b, sq_h, b, h), sq_t, row, columns, T, LONG_M, D, WIDTH)
        largest, total, weighted, top, bottom = nothing_seen(LONG_M, WIDTH)
        first, clear_last = visible_range(row + past, window, S, CAUSAL)
        clear_first, last = visible_range(row + past + LONG_M - 1, window, S, CAUSAL)
        for start in tl.range(first // LONG_N * LONG_N, tl.minimum(last + 1, S), LONG_N, num_stages=LONG_STAGES):
            k_ND = load_rows(keys, sk_t, start, columns, S, LONG_N, D, WIDTH)
            v_ND = load_rows(values, sv_t, start, columns, S, LONG_N, D, WIDTH)
            largest, total, weighted, top, bottom = see(
                q_MD, k_ND, v_ND, largest, total, weighted, top, bottom, t_M, start + tl.arange(0, LONG_N),
                (start < clear_first) | (start + LONG_N - 1 > clear_last),
                ids, window, decay, slope, scale, softcap, S,
                CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FOLD, STATS, PRECISION,
            )  # fmt: skip
        top, bottom, broken = finish(
            slab(out, so_b, so_h, b, h), so_t, lse + (b * H + h).to(tl.int64) * T, row, columns, T,
            largest, total, weighted, top, bottom, scale, D, WIDTH, LONG_M, FOLD,
        )  # fmt: skip
        if STATS:
            write_extremes(extremes, n_partial, (b * H + h) * n_partial + tile, B * H, top, bottom, broken)
    if SHORT and (not LONG or pid >= long_programs):
        if LONG:
            pid -= long_programs
        short_tiles = tl.cdiv(T, SHORT_M)
        runs = tl.cdiv(short_tiles, RUN)
        run, which = pid % runs, pid // runs
        b, h = which // n_short, tl.load(heads + n_long + which % n_short)
        window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
        ids = segments + b.to(tl.int64) * S
        keys, values = slab(k, sk_b, sk_h, b, h // GROUP), slab(v, sv_b, sv_h, b, h // GROUP)
        queries, outs = slab(q, sq_b, sq_h, b, h), slab(out, so_b, so_h, b, h)
        run_top, run_bottom = extremes_of_none(SHORT_M)
        run_broken = tl.zeros((SHORT_M,), tl.int32)
        for tile in tl.range(run * RUN, tl.minimum(run * RUN + RUN, short_tiles), num_stages=SHORT_STAGES):
            row = tile * SHORT_M
            t_M = row + past + tl.arange(0, SHORT_M)
            q_MD = load_rows(queries, sq_t, row, columns, T, SHORT_M, D, WIDTH)
            largest, total, weighted, top, bottom = nothing_seen(SHORT_M, WIDTH)
            for p in tl.static_range(TILES):
                start = row + past + SHORT_M + (AHEAD - TILES + p) * SHORT_N
                k_ND = load_rows(keys, sk_t, start, columns, S, SHORT_N, D, WIDTH)
                v_ND = load_rows(values, sv_t, start, columns, S, SHORT_N, D, WIDTH)
                largest, total, weighted, top, bottom = see(
                    q_MD, k_ND, v_ND, largest, total, weighted, top, bottom, t_M, start + tl.arange(0, SHORT_N),
                    p < FAR or p >= TILES - NEAR or (start < 0) | (start + SHORT_N > S),
                    ids, window, decay, slope, scale, softcap, S,
                    CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FOLD, STATS, PRECISION,
                )  # fmt: skip
            top, bottom, broken = finish(
                outs, so_t, lse + (b * H + h).to(tl.int64) * T, row, columns, T,
                largest, total, weighted, top, bottom, scale, D, WIDTH, SHORT_M, FOLD,
            )  # fmt: skip
            if STATS:
                run_top, run_bottom = tl.maximum(run_top, top), tl.minimum(run_bottom, bottom)
                run_broken = run_broken | broken
        if STATS:
            write_extremes(extremes, n_partial, (b * H + h) * n_partial + run, B * H, run_top, run_bottom, run_broken)


@triton.jit
def extremes_of_none(M: tl.constexpr):
    return tl.full((M,), float("-inf"), tl.float32), tl.full((M,), float("inf"), tl.float32)


@triton.jit
def nothing_seen(M: tl.constexpr, WIDTH: tl.constexpr):
    """Running maximum, sum and weighted values of M rows, and the extremes of their logits."""
    top, bottom = extremes_of_none(M)
    largest, total = tl.full((M,), NEVER, tl.float32), tl.zeros((M,), tl.float32)
    return largest, total, tl.zeros((M, WIDTH), tl.float32), top, bottom


@triton.jit
def see(
    q_MD, k_ND, v_ND, largest, total, weighted, top, bottom, t_M, j_N, edge,
    ids, window, decay, slope, scale, softcap, S,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FOLD: tl.constexpr, STATS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The rows' state after one more tile of keys. Only an `edge` tile holds pairs that may not see each other."""
    logits = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
    if FOLD:
        factor = scale * LOG2E
        x = logits
    else:
        factor = 1.0
        logits = logits * scale
        x, _ = scores(logits, t_M[:, None], j_N[None, :], decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        x = x * LOG2E
    if SEGMENTS or edge:
        seen = visible(t_M[:, None], j_N[None, :], window, ids, S, CAUSAL, SEGMENTS)
        if STATS:
            bottom = tl.minimum(bottom, tl.min(tl.where(seen, logits, float("inf")), 1))
            if not FOLD:
                top = tl.maximum(top, tl.max(tl.where(seen, logits, float("-inf")), 1))
        x = tl.where(seen, x, float("-inf"))
    elif STATS:
        bottom = tl.minimum(bottom, tl.min(logits, 1))
        if not FOLD:
            top = tl.maximum(top, tl.max(logits, 1))
    above = tl.maximum(largest, tl.max(x, 1))
    p = tl.exp2(x * factor - (above * factor)[:, None])
    fade = tl.exp2((largest - above) * factor)
    total = total * fade + tl.sum(p, 1)
    weighted = tl.dot(p.to(v_ND.dtype), v_ND, weighted * fade[:, None], input_precision=PRECISION)
    return above, total, weighted, top, bottom


@triton.jit
def finish(
    out, stride, lse, row, columns, T, largest, total, weighted, top, bottom, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Write the rows; returns the extremes of their logits, and which rows hold a NaN (tl.max and tl.min drop it)."""
    rows = row + tl.arange(0, M)
    blind = total == 0.0
    store_rows(out, stride, row, columns, T, weighted / tl.where(blind, 1.0, total)[:, None], M, D, WIDTH)
    log_total = tl.log2(tl.where(blind, 1.0, total))
    if FOLD:
        row_lse = largest * scale + log_total * LN2
        top, bottom = largest * scale, bottom * scale
    else:
        row_lse = (largest + log_total) * LN2
    tl.store(lse + rows, tl.where(blind, float("-inf"), row_lse), mask=rows < T)
    counts = (rows < T) & (total != 0.0)
    broken = (total != total) & (largest < float("inf"))
    return tl.where(counts, top, float("-inf")), tl.where(counts, bottom, float("inf")), broken.to(tl.int32)


@triton.jit
def write_extremes(extremes, n_partial, at, n_slabs, top, bottom, broken):
    bad = tl.max(broken, 0) > 0
    tl.store(extremes + at, tl.where(bad, float("nan"), tl.max(top, 0)))
    tl.store(extremes + n_slabs * n_partial + at, tl.where(bad, float("nan"), tl.min(bottom, 0)))


@triton.jit(do_not_specialize=SIZES)
def reduce_extremes_kernel(
    extremes, is_short, high, low, B, H, n_partial, long_tiles, short_runs, BLOCK: tl.constexpr
):  # fmt: skip
    """(2, B, H, partials) -> (2, H); a NaN stays visible."""
    h, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    count = tl.where(tl.load(is_short + h) != 0, short_runs, long_tiles)
    top, bottom = extremes_of_none(BLOCK)
    broken = tl.zeros((BLOCK,), tl.int32)
    for i in range(0, B * count, BLOCK):
        b, partial = (i + lanes) // count, (i + lanes) % count
        at = extremes + (b * H + h) * n_partial + partial
        highs = tl.load(at, mask=b < B, other=float("-inf"))
        lows = tl.load(at + B * H * n_partial, mask=b < B, other=float("inf"))
        top, bottom, broken = tl.maximum(top, highs), tl.minimum(bottom, lows), broken | (highs != highs).to(tl.int32)
    bad = tl.max(broken, 0) > 0
    tl.store(high + h, tl.where(bad, float("nan"), tl.max(top, 0)))
    tl.store(low + h, tl.where(bad, float("nan"), tl.min(bottom, 0)))
