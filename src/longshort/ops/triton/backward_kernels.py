"""The backward kernels: query gradients, then key and value gradients. Each program owns what it writes.

There are no atomics, so two runs agree to the bit. Walks are as in the forward kernel; in the second kernel keys and
queries swap roles.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import LOG2E, fading, head_options, scores, visible
from longshort.ops.triton.segment_ranges import meeting
from longshort.ops.triton.walks import (
    SIZES,
    also_first_keys,
    also_first_queries,
    at_edge,
    keys_of,
    load_numbers,
    load_rows,
    own_part,
    own_tile,
    partial_rows,
    queries_of,
    store_rows,
)


@triton.jit(do_not_specialize=SIZES)
def grad_q_kernel(
    grad, q, k, v, out, lse, numbers, grad_q, partial, heads, windows, decays, slopes, segments, ranges,
    firsts, places,
    sg_b, sg_h, sg_t, sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t, sd_b, sd_h, sd_t,
    scale, softcap, B, H, T, S, n_long, parts, padded,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FIRST: tl.constexpr, SKIP: tl.constexpr, FOLD: tl.constexpr, FADE: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr, SPLIT: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """A program owns M queries. It writes two numbers per row for the next kernel: lse in base 2, and delta, the sum of
    grad * out. A row that sees nothing or is past the end has an lse of +inf, so its weights are zero without a mask.
    """
    tile, part, slot, b, h = own_tile(tl.cdiv(T, M), n_long, parts, heads, SPLIT, True)
    window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
    ids = segments + b.to(tl.int64) * S
    row = tile * M
    rows = row + tl.arange(0, M)
    q_MD = load_rows(q, sq_b, sq_h, sq_t, b, h, row, T, M, D, WIDTH, TMA)
    grad_MD = load_rows(grad, sg_b, sg_h, sg_t, b, h, row, T, M, D, WIDTH, TMA)
    out_MD = load_rows(out, so_b, so_h, so_t, b, h, row, T, M, D, WIDTH, False)
    delta_M = tl.sum(grad_MD.to(tl.float32) * out_MD.to(tl.float32), 1)
    lse_M = tl.load(lse + (b * H + h).to(tl.int64) * T + rows, mask=rows < T, other=float("inf"))
    lse_M = tl.where(lse_M == float("-inf"), float("inf"), lse_M) * LOG2E
    if part == 0:
        at = numbers + (b * H + h) * padded
        each = B * H * padded
        tl.store(at + rows, lse_M, mask=rows < T)
        tl.store(at + each + rows, delta_M, mask=rows < T)
        if row + M >= T:
            beyond = T + tl.arange(0, PAD)
            tl.store(at + beyond, tl.full((PAD,), float("inf"), tl.float32), mask=beyond < padded)
            tl.store(at + each + beyond, tl.zeros((PAD,), tl.float32), mask=beyond < padded)
    total = tl.zeros((M, WIDTH), tl.float32)
    start, stop = keys_of(row, window, T, S, M, N, CAUSAL)
    first, lead, shift = 0, 0, 0
    if FIRST:
        first = tl.load(firsts + h)
        lead, covered, stop = also_first_keys(places, b, row, first, start, stop, B, T, S, M, N, CAUSAL, SEGMENTS)
    if SKIP:
        start, stop = meeting(ranges, b, row + S - T, start, stop, 0, S, M, N)
    near = start
    if FIRST:
        start = start - covered
        shift = start - lead
    if SPLIT:
        start, stop = own_part(start, stop, part, parts, slot, N)
    for step in tl.range(start, stop, N, num_stages=STAGES):
        key = step
        if FIRST:
            key = tl.where(step < near, step - shift, step)
        k_ND = load_rows(k, sk_b, sk_h, sk_t, b, h // GROUP, key, S, N, D, WIDTH, TMA)
        v_ND = load_rows(v, sv_b, sv_h, sv_t, b, h // GROUP, key, S, N, D, WIDTH, TMA)
        total = grad_rows(
            q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total,
            rows + S - T, key + tl.arange(0, N), key, at_edge(row, key, window, T, S, M, N, CAUSAL),
            ids, window, first, places + b.to(tl.int64) * S, decay, slope, scale, softcap, S,
            CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, FOLD, FADE, PRECISION,
        )  # fmt: skip
    if SPLIT and slot >= 0:
        at, real = partial_rows(partial, slot, part, parts, T, row, M, WIDTH)
        tl.store(at, total, mask=real)
    else:
        store_rows(grad_q, sd_b, sd_h, sd_t, b, h, row, T, total * scale, M, D, WIDTH)


@triton.jit
def weights(
    logits, lse, t, j, decay, slope, scale, softcap,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Softmax of the scores from their lse (base 2), before the mask, and dx / dlogits; in either orientation."""
    if FOLD:
        p, derivative = tl.exp2(logits * (scale * LOG2E) - lse), logits
    else:
        x, derivative = scores(logits * scale, t, j, decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        p = tl.exp2(x * LOG2E - lse)
    return p, derivative


@triton.jit
def grad_rows(
    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total, t_M, j_N, key, edge,
    ids, window, first, ranks, decay, slope, scale, softcap, S,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FIRST: tl.constexpr, FOLD: tl.constexpr, FADE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one tile of keys adds to the query gradients, before the scale is applied."""
    logits = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
    if FADE:
        fade_M, fade_N = fading(t_M, j_N, key, decay, FADE)
        y = logits * fade_N[None, :] * (fade_M * (scale * LOG2E))[:, None] - lse_M[:, None]
        if SEGMENTS or edge:
            seen = visible(t_M[:, None], j_N[None, :], window, ids, first, ranks, S, CAUSAL, SEGMENTS, FIRST)
            y = tl.where(seen, y, float("-inf"))
        p = tl.exp2(y)
    else:
        p, derivative = weights(
            logits, lse_M[:, None], t_M[:, None], j_N[None, :],
            decay, slope, scale, softcap, DECAY, SLOPE, SOFTCAP, FOLD,
        )  # fmt: skip
        if SEGMENTS or edge:
            seen = visible(t_M[:, None], j_N[None, :], window, ids, first, ranks, S, CAUSAL, SEGMENTS, FIRST)
            p = tl.where(seen, p, 0.0)
    inner = tl.dot(grad_MD, tl.trans(v_ND), input_precision=PRECISION)
    if FADE:
        grad_logits = p * (inner * fade_M[:, None] - (delta_M * fade_M)[:, None]) * fade_N[None, :]
    else:
        grad_logits = p * (inner - delta_M[:, None])
        if not FOLD:
            grad_logits *= derivative
    return tl.dot(grad_logits.to(k_ND.dtype), k_ND, total, input_precision=PRECISION)


@triton.jit(do_not_specialize=SIZES)
def grad_kv_kernel(
    grad, q, k, v, lse, delta, grad_k, grad_v, partial_k, partial_v, heads, windows, decays, slopes, segments, ranges,
    firsts, places,
    sg_b, sg_h, sg_t, sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, sd_b, sd_h, sd_t,
    scale, softcap, B, H, T, S, n_long, parts, padded,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FIRST: tl.constexpr, SKIP: tl.constexpr, FOLD: tl.constexpr, FADE: tl.constexpr, PRECISION: tl.constexpr,
    TMA: tl.constexpr, SPLIT: tl.constexpr, M: tl.constexpr, N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program owns N keys of a KV head and walks over the queries that see them, in each of its query heads."""
    tile, part, slot, b, kv = own_tile(tl.cdiv(S, N), n_long, parts, heads, SPLIT, False)
    ids = segments + b.to(tl.int64) * S
    begin = tile * N
    j_N = begin + tl.arange(0, N)
    k_ND = load_rows(k, sk_b, sk_h, sk_t, b, kv, begin, S, N, D, WIDTH, TMA)
    v_ND = load_rows(v, sv_b, sv_h, sv_t, b, kv, begin, S, N, D, WIDTH, TMA)
    total_k, total_v = tl.zeros((N, WIDTH), tl.float32), tl.zeros((N, WIDTH), tl.float32)
    for member in range(GROUP):
        h = kv * GROUP + member
        window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
        start, stop = queries_of(begin, window, T, S, M, N, CAUSAL)
        first = 0
        if FIRST:
            first = tl.load(firsts + h)
            start, stop = also_first_queries(places, b, begin, first, start, stop, B, T, S, M, N, CAUSAL, SEGMENTS)
        if SKIP:
            start, stop = meeting(ranges, b, begin, start, stop, S - T, S, N, M)
        if SPLIT:
            start, stop = own_part(start, stop, part, parts, slot, M)
        for row in tl.range(start, stop, M, num_stages=STAGES):
            q_MD = load_rows(q, sq_b, sq_h, sq_t, b, h, row, T, M, D, WIDTH, TMA)
            grad_MD = load_rows(grad, sg_b, sg_h, sg_t, b, h, row, T, M, D, WIDTH, TMA)
            lse_M = load_numbers(lse, (b * H + h) * padded + row, M, TMA)
            delta_M = load_numbers(delta, (b * H + h) * padded + row, M, TMA)
            total_k, total_v = grad_columns(
                q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total_k, total_v,
                row + S - T + tl.arange(0, M), j_N, row + S - T, at_edge(row, begin, window, T, S, M, N, CAUSAL),
                ids, window, first, places + b.to(tl.int64) * S, decay, slope, scale, softcap, S,
                CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FIRST, FOLD, FADE, PRECISION,
            )  # fmt: skip
    if SPLIT and slot >= 0:
        at, real = partial_rows(partial_k, slot, part, parts, S, begin, N, WIDTH)
        tl.store(at, total_k, mask=real)
        at, real = partial_rows(partial_v, slot, part, parts, S, begin, N, WIDTH)
        tl.store(at, total_v, mask=real)
    else:
        store_rows(grad_k, sd_b, sd_h, sd_t, b, kv, begin, S, total_k * scale, N, D, WIDTH)
        store_rows(grad_v, sd_b, sd_h, sd_t, b, kv, begin, S, total_v, N, D, WIDTH)


@triton.jit
def grad_columns(
    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total_k, total_v, t_M, j_N, border, edge,
    ids, window, first, ranks, decay, slope, scale, softcap, S,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FIRST: tl.constexpr, FOLD: tl.constexpr, FADE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one tile of queries adds to the key gradients (before the scale is applied) and value gradients."""
    logits = tl.dot(k_ND, tl.trans(q_MD), input_precision=PRECISION)
    if FADE:
        fade_M, fade_N = fading(t_M, j_N, border, decay, FADE)
        y = logits * fade_M[None, :] * (fade_N * (scale * LOG2E))[:, None] - lse_M[None, :]
        if SEGMENTS or edge:
            seen = visible(t_M[None, :], j_N[:, None], window, ids, first, ranks, S, CAUSAL, SEGMENTS, FIRST)
            y = tl.where(seen, y, float("-inf"))
        p = tl.exp2(y)
    else:
        p, derivative = weights(
            logits, lse_M[None, :], t_M[None, :], j_N[:, None],
            decay, slope, scale, softcap, DECAY, SLOPE, SOFTCAP, FOLD,
        )  # fmt: skip
        if SEGMENTS or edge:
            seen = visible(t_M[None, :], j_N[:, None], window, ids, first, ranks, S, CAUSAL, SEGMENTS, FIRST)
            p = tl.where(seen, p, 0.0)
    total_v = tl.dot(p.to(grad_MD.dtype), grad_MD, total_v, input_precision=PRECISION)
    inner = tl.dot(v_ND, tl.trans(grad_MD), input_precision=PRECISION)
    if FADE:
        grad_logits = p * (inner * fade_M[None, :] - (delta_M * fade_M)[None, :]) * fade_N[:, None]
    else:
        grad_logits = p * (inner - delta_M[None, :])
        if not FOLD:
            grad_logits *= derivative
    return tl.dot(grad_logits.to(q_MD.dtype), q_MD, total_k, input_precision=PRECISION), total_v


@triton.jit(do_not_specialize=SIZES)
def grad_sinks_kernel(lse, delta, sinks, partial, H, T, padded, BLOCK: tl.constexpr):
    """A program sums the gradient of one head's sink, whose value is zero, over BLOCK rows of a sequence: its weight in
    each row times -delta."""
    h, block, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = block * BLOCK + tl.arange(0, BLOCK)
    at = (b * H + h) * padded + rows
    row_lse = tl.load(lse + at, mask=rows < T, other=float("inf"))
    total = tl.exp2(tl.load(sinks + h) * LOG2E - row_lse) * tl.load(delta + at, mask=rows < T, other=0.0)
    tl.store(partial + (h * tl.num_programs(2) + b) * tl.num_programs(1) + block, -tl.sum(total, 0))


@triton.jit(do_not_specialize=SIZES)
def add_parts_kernel(
    partial, grad, heads, sg_b, sg_h, sg_t, factor, n_long, parts, length,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The gradients of long heads: the sum over their parts, times `factor`."""
    first, slot = tl.program_id(0) * ROWS, tl.program_id(1)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(parts):
        at, real = partial_rows(partial, slot, part, parts, length, first, ROWS, WIDTH)
        total += tl.load(at, mask=real, other=0.0)
    b, h = slot // n_long, tl.load(heads + slot % n_long)
    store_rows(grad, sg_b, sg_h, sg_t, b, h, first, length, total * factor, ROWS, D, WIDTH)
