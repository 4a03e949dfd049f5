"""The backward kernels: query gradients, then key and value gradients. Each program owns what it writes.

No atomics, so two runs give equal bits. Long and short heads are laid out as in the forward kernel; in the second
kernel keys and queries change places. A row outside of the sequence has an lse of +inf: its weights are zero, unmasked.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import (
    LOG2E,
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
def grad_q_kernel(
    grad, q, k, v, out, lse, delta, grad_q, heads, windows, decays, slopes, segments,
    sg_b, sg_h, sg_t, sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, B, H, T, S, n_long, n_short,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FOLD: tl.constexpr, PRECISION: tl.constexpr,
    LONG: tl.constexpr, LONG_M: tl.constexpr, LONG_N: tl.constexpr, LONG_STAGES: tl.constexpr,
    SHORT: tl.constexpr, SHORT_M: tl.constexpr, SHORT_N: tl.constexpr, SHORT_STAGES: tl.constexpr,
    RUN: tl.constexpr, TILES: tl.constexpr, AHEAD: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Also writes delta, the sum of grad * out of each row, which the next kernel reads."""
    pid = tl.program_id(0)
    past = S - T
    columns = tl.arange(0, WIDTH)
    long_tiles = tl.cdiv(T, LONG_M)
    long_programs = long_tiles * B * n_long
    if LONG and (not SHORT or pid < long_programs):
        row = (long_tiles - 1 - pid // (B * n_long)) * LONG_M
        b, h = pid % (B * n_long) // n_long, tl.load(heads + pid % n_long)
        window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
        ids = segments + b.to(tl.int64) * S
        keys, values = slab(k, sk_b, sk_h, b, h // GROUP), slab(v, sv_b, sv_h, b, h // GROUP)
        t_M = row + past + tl.arange(0, LONG_M)
        q_MD = load_rows(slab(q, sq_b, sq_h, b, h), sq_t, row, columns, T, LONG_M, D, WIDTH)
        grad_MD = load_rows(slab(grad, sg_b, sg_h, b, h), sg_t, row, columns, T, LONG_M, D, WIDTH)
        out_MD = load_rows(slab(out, so_b, so_h, b, h), so_t, row, columns, T, LONG_M, D, WIDTH)
        flat = (b * H + h).to(tl.int64) * T
        lse_M, delta_M = row_statistics(lse + flat, delta + flat, row, T, grad_MD, out_MD, LONG_M)
        total = tl.zeros((LONG_M, WIDTH), tl.float32)
        first, clear_last = visible_range(row + past, window, S, CAUSAL)
        clear_first, last = visible_range(row + past + LONG_M - 1, window, S, CAUSAL)
        for start in tl.range(first // LONG_N * LONG_N, tl.minimum(last + 1, S), LONG_N, num_stages=LONG_STAGES):
            k_ND = load_rows(keys, sk_t, start, columns, S, LONG_N, D, WIDTH)
            v_ND = load_rows(values, sv_t, start, columns, S, LONG_N, D, WIDTH)
            total = grad_rows(
                q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total, t_M, start + tl.arange(0, LONG_N),
                (start < clear_first) | (start + LONG_N - 1 > clear_last),
                ids, window, decay, slope, scale, softcap, S, CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FOLD, PRECISION,
            )  # fmt: skip
        store_rows(slab(grad_q, so_b, so_h, b, h), so_t, row, columns, T, total * scale, LONG_M, D, WIDTH)
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
        queries, grads = slab(q, sq_b, sq_h, b, h), slab(grad, sg_b, sg_h, b, h)
        outs, results = slab(out, so_b, so_h, b, h), slab(grad_q, so_b, so_h, b, h)
        flat = (b * H + h).to(tl.int64) * T
        for tile in tl.range(run * RUN, tl.minimum(run * RUN + RUN, short_tiles), num_stages=SHORT_STAGES):
            row = tile * SHORT_M
            t_M = row + past + tl.arange(0, SHORT_M)
            q_MD = load_rows(queries, sq_t, row, columns, T, SHORT_M, D, WIDTH)
            grad_MD = load_rows(grads, sg_t, row, columns, T, SHORT_M, D, WIDTH)
            out_MD = load_rows(outs, so_t, row, columns, T, SHORT_M, D, WIDTH)
            lse_M, delta_M = row_statistics(lse + flat, delta + flat, row, T, grad_MD, out_MD, SHORT_M)
            total = tl.zeros((SHORT_M, WIDTH), tl.float32)
            for p in tl.static_range(TILES):
                start = row + past + SHORT_M + (AHEAD - TILES + p) * SHORT_N
                k_ND = load_rows(keys, sk_t, start, columns, S, SHORT_N, D, WIDTH)
                v_ND = load_rows(values, sv_t, start, columns, S, SHORT_N, D, WIDTH)
                total = grad_rows(
                    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total, t_M, start + tl.arange(0, SHORT_N),
                    p < FAR or p >= TILES - NEAR or (start < 0) | (start + SHORT_N > S),
                    ids, window, decay, slope, scale, softcap, S,
                    CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FOLD, PRECISION,
                )  # fmt: skip
            store_rows(results, so_t, row, columns, T, total * scale, SHORT_M, D, WIDTH)


@triton.jit
def row_statistics(lse, delta, row, T, grad_MD, out_MD, M: tl.constexpr):
    """lse in base 2 (+inf for rows that see nothing or do not exist) and delta, which is written too."""
    rows = row + tl.arange(0, M)
    delta_M = tl.sum(grad_MD.to(tl.float32) * out_MD.to(tl.float32), 1)
    tl.store(delta + rows, delta_M, mask=rows < T)
    return load_lse(lse, row, T, M), delta_M


@triton.jit
def load_lse(lse, row, T, M: tl.constexpr):
    rows = row + tl.arange(0, M)
    lse_M = tl.load(lse + rows, mask=(rows >= 0) & (rows < T), other=float("inf"))
    return tl.where(lse_M == float("-inf"), float("inf"), lse_M) * LOG2E


@triton.jit
def weights(
    logits, lse, t, j, decay, slope, scale, softcap,
    DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """softmax of the scores by their lse (base 2), before the mask, and dx / dlogits; of either orientation."""
    if FOLD:
        p, derivative = tl.exp2(logits * (scale * LOG2E) - lse), logits
    else:
        x, derivative = scores(logits * scale, t, j, decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        p = tl.exp2(x * LOG2E - lse)
    return p, derivative


@triton.jit
def grad_rows(
    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total, t_M, j_N, edge,
    ids, window, decay, slope, scale, softcap, S,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FOLD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one tile of keys adds to the query gradients, still without the scale."""
    logits = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
    p, derivative = weights(
        logits, lse_M[:, None], t_M[:, None], j_N[None, :], decay, slope, scale, softcap, DECAY, SLOPE, SOFTCAP, FOLD
    )
    if SEGMENTS or edge:
        p = tl.where(visible(t_M[:, None], j_N[None, :], window, ids, S, CAUSAL, SEGMENTS), p, 0.0)
    inner = tl.dot(grad_MD, tl.trans(v_ND), input_precision=PRECISION)
    grad_logits = p * (inner - delta_M[:, None])
    if not FOLD:
        grad_logits *= derivative
    return tl.dot(grad_logits.to(k_ND.dtype), k_ND, total, input_precision=PRECISION)


@triton.jit(do_not_specialize=SIZES)
def grad_kv_kernel(
    grad, q, k, v, lse, delta, grad_k, grad_v, heads, windows, decays, slopes, segments,
    sg_b, sg_h, sg_t, sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, B, H, T, S, n_long, n_short,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FOLD: tl.constexpr, PRECISION: tl.constexpr,
    LONG: tl.constexpr, LONG_M: tl.constexpr, LONG_N: tl.constexpr, LONG_STAGES: tl.constexpr,
    SHORT: tl.constexpr, SHORT_M: tl.constexpr, SHORT_N: tl.constexpr, SHORT_STAGES: tl.constexpr,
    RUN: tl.constexpr, TILES: tl.constexpr, AHEAD: tl.constexpr, FAR: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Here N are the keys that a program owns and M the queries that pass by; `heads` are KV heads."""
    pid = tl.program_id(0)
    past = S - T
    columns = tl.arange(0, WIDTH)
    long_tiles = tl.cdiv(S, LONG_N)
    long_programs = long_tiles * B * n_long
    if LONG and (not SHORT or pid < long_programs):
        begin = pid // (B * n_long) * LONG_N
        b, kv = pid % (B * n_long) // n_long, tl.load(heads + pid % n_long)
        ids = segments + b.to(tl.int64) * S
        j_N = begin + tl.arange(0, LONG_N)
        k_ND = load_rows(slab(k, sk_b, sk_h, b, kv), sk_t, begin, columns, S, LONG_N, D, WIDTH)
        v_ND = load_rows(slab(v, sv_b, sv_h, b, kv), sv_t, begin, columns, S, LONG_N, D, WIDTH)
        total_k, total_v = tl.zeros((LONG_N, WIDTH), tl.float32), tl.zeros((LONG_N, WIDTH), tl.float32)
        for member in range(GROUP):
            h = kv * GROUP + member
            window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
            queries, grads = slab(q, sq_b, sq_h, b, h), slab(grad, sg_b, sg_h, b, h)
            flat = (b * H + h).to(tl.int64) * T
            first = begin - past
            if not CAUSAL:
                first = first - window + 1
            last = tl.minimum(T, begin + LONG_N - 1 + window - past)
            for start in tl.range(tl.maximum(0, first) // LONG_M * LONG_M, last, LONG_M, num_stages=LONG_STAGES):
                q_MD = load_rows(queries, sq_t, start, columns, T, LONG_M, D, WIDTH)
                grad_MD = load_rows(grads, sg_t, start, columns, T, LONG_M, D, WIDTH)
                lse_M, delta_M = load_lse(lse + flat, start, T, LONG_M), load_delta(delta + flat, start, T, LONG_M)
                _, clear_last = visible_range(start + past, window, S, CAUSAL)
                clear_first, _ = visible_range(start + past + LONG_M - 1, window, S, CAUSAL)
                total_k, total_v = grad_columns(
                    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total_k, total_v,
                    start + past + tl.arange(0, LONG_M), j_N, (begin < clear_first) | (begin + LONG_N - 1 > clear_last),
                    ids, window, decay, slope, scale, softcap, S,
                    CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FOLD, PRECISION,
                )  # fmt: skip
        store_rows(slab(grad_k, so_b, so_h, b, kv), so_t, begin, columns, S, total_k * scale, LONG_N, D, WIDTH)
        store_rows(slab(grad_v, so_b, so_h, b, kv), so_t, begin, columns, S, total_v, LONG_N, D, WIDTH)
    if SHORT and (not LONG or pid >= long_programs):
        if LONG:
            pid -= long_programs
        short_tiles = tl.cdiv(S, SHORT_N)
        runs = tl.cdiv(short_tiles, RUN)
        run, which = pid % runs, pid // runs
        b, kv = which // n_short, tl.load(heads + n_long + which % n_short)
        ids = segments + b.to(tl.int64) * S
        keys, values = slab(k, sk_b, sk_h, b, kv), slab(v, sv_b, sv_h, b, kv)
        grads_k, grads_v = slab(grad_k, so_b, so_h, b, kv), slab(grad_v, so_b, so_h, b, kv)
        total_k, total_v = tl.zeros((SHORT_N, WIDTH), tl.float32), tl.zeros((SHORT_N, WIDTH), tl.float32)
        last = tl.minimum(run * RUN + RUN, short_tiles) * GROUP
        for item in tl.range(run * RUN * GROUP, last, num_stages=SHORT_STAGES):
            begin, member = item // GROUP * SHORT_N, item % GROUP
            h = kv * GROUP + member
            window, decay, slope = head_options(windows, decays, slopes, h, DECAY, SLOPE)
            queries, grads = slab(q, sq_b, sq_h, b, h), slab(grad, sg_b, sg_h, b, h)
            flat = (b * H + h).to(tl.int64) * T
            j_N = begin + tl.arange(0, SHORT_N)
            k_ND = load_rows(keys, sk_t, begin, columns, S, SHORT_N, D, WIDTH)
            v_ND = load_rows(values, sv_t, begin, columns, S, SHORT_N, D, WIDTH)
            if GROUP == 1:
                total_k, total_v = tl.zeros((SHORT_N, WIDTH), tl.float32), tl.zeros((SHORT_N, WIDTH), tl.float32)
            else:
                total_k, total_v = tl.where(member == 0, 0.0, total_k), tl.where(member == 0, 0.0, total_v)
            for p in tl.static_range(TILES):
                start = begin - past + (p - AHEAD) * SHORT_M
                q_MD = load_rows(queries, sq_t, start, columns, T, SHORT_M, D, WIDTH)
                grad_MD = load_rows(grads, sg_t, start, columns, T, SHORT_M, D, WIDTH)
                lse_M, delta_M = load_lse(lse + flat, start, T, SHORT_M), load_delta(delta + flat, start, T, SHORT_M)
                total_k, total_v = grad_columns(
                    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total_k, total_v,
                    start + past + tl.arange(0, SHORT_M), j_N, p < NEAR or p >= TILES - FAR,
                    ids, window, decay, slope, scale, softcap, S,
                    CAUSAL, DECAY, SLOPE, SOFTCAP, SEGMENTS, FOLD, PRECISION,
                )  # fmt: skip
            if GROUP == 1 or member == GROUP - 1:
                store_rows(grads_k, so_t, begin, columns, S, total_k * scale, SHORT_N, D, WIDTH)
                store_rows(grads_v, so_t, begin, columns, S, total_v, SHORT_N, D, WIDTH)


@triton.jit
def load_delta(delta, row, T, M: tl.constexpr):
    rows = row + tl.arange(0, M)
    return tl.load(delta + rows, mask=(rows >= 0) & (rows < T), other=0.0)


@triton.jit
def grad_columns(
    q_MD, grad_MD, k_ND, v_ND, lse_M, delta_M, total_k, total_v, t_M, j_N, edge,
    ids, window, decay, slope, scale, softcap, S,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    FOLD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What one tile of queries adds to the key gradients (still without the scale) and value gradients."""
    logits = tl.dot(k_ND, tl.trans(q_MD), input_precision=PRECISION)
    p, derivative = weights(
        logits, lse_M[None, :], t_M[None, :], j_N[:, None], decay, slope, scale, softcap, DECAY, SLOPE, SOFTCAP, FOLD
    )
    if SEGMENTS or edge:
        p = tl.where(visible(t_M[None, :], j_N[:, None], window, ids, S, CAUSAL, SEGMENTS), p, 0.0)
    total_v = tl.dot(p.to(grad_MD.dtype), grad_MD, total_v, input_precision=PRECISION)
    inner = tl.dot(v_ND, tl.trans(grad_MD), input_precision=PRECISION)
    grad_logits = p * (inner - delta_M[None, :])
    if not FOLD:
        grad_logits *= derivative
    return tl.dot(grad_logits.to(q_MD.dtype), q_MD, total_k, input_precision=PRECISION), total_v
