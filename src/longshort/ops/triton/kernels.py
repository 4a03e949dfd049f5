"""The kernels: forward, and two backward passes that each own what they write (no atomics, so equal bits every run).

A program of the forward and of the query-gradient kernel owns M query rows of one head and walks over the keys that the
head's window lets them see; one of the key-gradient kernel owns N keys of one KV head and walks over the query rows, of
all query heads of its group, that see them. Offsets of rows are 64-bit: B*H*T*D passes 2^31 at sizes people use.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

from longshort.ops.triton.scores import scores, visible_pairs


@triton.jit
def rows_of(base, stride_b, stride_h, stride_t, b, h, positions, columns):
    """Pointers (positions, columns) into a (B, H, T, D) tensor whose last stride is 1."""
    start = base + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h
    return start + positions.to(tl.int64)[:, None] * stride_t + columns[None, :]


@triton.jit
def key_range(row, window, T, S, M: tl.constexpr, N: tl.constexpr, CAUSAL: tl.constexpr):
    """First (a multiple of N) and one past the last key that rows row .. row+M may see."""
    past = S - T
    first = tl.maximum(0, row + past - window + 1) // N * N
    last = row + M + past
    if not CAUSAL:
        last = last + window - 1
    return first, tl.minimum(S, last)


@triton.jit
def forward_kernel(
    q, k, v, out, lse, high, low, windows, decays, slopes, segments,
    sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, H, T, S,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    STATS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile, b, h = tl.program_id(0), tl.program_id(1) // H, tl.program_id(1) % H
    rows, columns = tile * M + tl.arange(0, M), tl.arange(0, WIDTH)
    real_M, real_D = rows < T, columns < D
    t_M = rows + S - T
    window = tl.load(windows + h)
    decay = tl.load(decays + h) if DECAY else 0.0
    slope = tl.load(slopes + h) if SLOPE else 0.0
    q_MD = tl.load(rows_of(q, sq_b, sq_h, sq_t, b, h, rows, columns), mask=real_M[:, None] & real_D[None, :], other=0.0)
    largest = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    weighted = tl.zeros((M, WIDTH), tl.float32)
    top, bottom = tl.full((M,), float("-inf"), tl.float32), tl.full((M,), float("inf"), tl.float32)
    broken = tl.zeros((M,), tl.int32)
    first, last = key_range(tile * M, window, T, S, M, N, CAUSAL)
    for start in range(first, last, N):
        j_N = start + tl.arange(0, N)
        real_N = j_N < S
        whole = real_N[:, None] & real_D[None, :]
        k_ND = tl.load(rows_of(k, sk_b, sk_h, sk_t, b, h // GROUP, j_N, columns), mask=whole, other=0.0)
        v_ND = tl.load(rows_of(v, sv_b, sv_h, sv_t, b, h // GROUP, j_N, columns), mask=whole, other=0.0)
        logits = scale * tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
        ours, theirs = segments + b * S + t_M, segments + b * S + j_N
        seen = visible_pairs(t_M, j_N, real_M, real_N, window, ours, theirs, CAUSAL, SEGMENTS)
        if STATS:
            top = tl.maximum(top, tl.max(tl.where(seen, logits, float("-inf")), 1))
            bottom = tl.minimum(bottom, tl.min(tl.where(seen, logits, float("inf")), 1))
            broken = broken | tl.max((seen & (logits != logits)).to(tl.int32), 1)
        x, _ = scores(logits, t_M, j_N, decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        x = tl.where(seen, x, float("-inf"))
        above = tl.maximum(largest, tl.max(x, 1))
        finite = tl.where(above == float("-inf"), 0.0, above)  # rows that have seen nothing yet: exp(-inf - 0) is 0
        p = tl.exp(x - finite[:, None])
        fade = tl.exp(largest - finite)
        total = total * fade + tl.sum(p, 1)
        weighted = weighted * fade[:, None] + tl.dot(p.to(v_ND.dtype), v_ND, input_precision=PRECISION)
        largest = above
    blind = total == 0.0
    weighted = weighted / tl.where(blind, 1.0, total)[:, None]
    place = rows_of(out, so_b, so_h, so_t, b, h, rows, columns)
    tl.store(place, weighted.to(out.dtype.element_ty), mask=real_M[:, None] & real_D[None, :])
    row_lse = tl.where(blind, float("-inf"), largest + tl.log(tl.where(blind, 1.0, total)))
    tl.store(lse + tl.program_id(1).to(tl.int64) * T + rows, row_lse, mask=real_M)
    if STATS:
        bad = tl.max(broken, 0) > 0  # tl.max and tl.min drop a NaN; it must stay visible
        at = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tile
        tl.store(high + at, tl.where(bad, float("nan"), tl.max(top, 0)))
        tl.store(low + at, tl.where(bad, float("nan"), tl.min(bottom, 0)))


@triton.jit
def grad_q_kernel(
    grad, q, k, v, lse, delta, grad_q, windows, decays, slopes, segments,
    sg_b, sg_h, sg_t, sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, H, T, S,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tile, b, h = tl.program_id(0), tl.program_id(1) // H, tl.program_id(1) % H
    rows, columns = tile * M + tl.arange(0, M), tl.arange(0, WIDTH)
    real_M, real_D = rows < T, columns < D
    whole_M = real_M[:, None] & real_D[None, :]
    t_M = rows + S - T
    window = tl.load(windows + h)
    decay = tl.load(decays + h) if DECAY else 0.0
    slope = tl.load(slopes + h) if SLOPE else 0.0
    q_MD = tl.load(rows_of(q, sq_b, sq_h, sq_t, b, h, rows, columns), mask=whole_M, other=0.0)
    grad_MD = tl.load(rows_of(grad, sg_b, sg_h, sg_t, b, h, rows, columns), mask=whole_M, other=0.0)
    at = tl.program_id(1).to(tl.int64) * T + rows
    lse_M = tl.load(lse + at, mask=real_M, other=0.0)
    lse_M = tl.where(lse_M == float("-inf"), 0.0, lse_M)
    delta_M = tl.load(delta + at, mask=real_M, other=0.0)
    total = tl.zeros((M, WIDTH), tl.float32)
    first, last = key_range(tile * M, window, T, S, M, N, CAUSAL)
    for start in range(first, last, N):
        j_N = start + tl.arange(0, N)
        real_N = j_N < S
        whole_N = real_N[:, None] & real_D[None, :]
        k_ND = tl.load(rows_of(k, sk_b, sk_h, sk_t, b, h // GROUP, j_N, columns), mask=whole_N, other=0.0)
        v_ND = tl.load(rows_of(v, sv_b, sv_h, sv_t, b, h // GROUP, j_N, columns), mask=whole_N, other=0.0)
        logits = scale * tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
        ours, theirs = segments + b * S + t_M, segments + b * S + j_N
        seen = visible_pairs(t_M, j_N, real_M, real_N, window, ours, theirs, CAUSAL, SEGMENTS)
        x, derivative = scores(logits, t_M, j_N, decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
        p = tl.exp(tl.where(seen, x, float("-inf")) - lse_M[:, None])
        inner = tl.dot(grad_MD, tl.trans(v_ND), input_precision=PRECISION) - delta_M[:, None]
        grad_logits = p * inner * derivative * scale
        total += tl.dot(grad_logits.to(k_ND.dtype), k_ND, input_precision=PRECISION)
    place = rows_of(grad_q, so_b, so_h, so_t, b, h, rows, columns)
    tl.store(place, total.to(grad_q.dtype.element_ty), mask=whole_M)


@triton.jit
def grad_kv_kernel(
    grad, q, k, v, lse, delta, grad_k, grad_v, windows, decays, slopes, segments,
    sg_b, sg_h, sg_t, sq_b, sq_h, sq_t, sk_b, sk_h, sk_t, sv_b, sv_h, sv_t, so_b, so_h, so_t,
    scale, softcap, H, T, S,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    CAUSAL: tl.constexpr, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SEGMENTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    n_kv = H // GROUP
    b, kv = tl.program_id(1) // n_kv, tl.program_id(1) % n_kv
    begin = tl.program_id(0) * N
    j_N, columns = begin + tl.arange(0, N), tl.arange(0, WIDTH)
    real_N, real_D = j_N < S, columns < D
    whole_N = real_N[:, None] & real_D[None, :]
    past = S - T
    k_ND = tl.load(rows_of(k, sk_b, sk_h, sk_t, b, kv, j_N, columns), mask=whole_N, other=0.0)
    v_ND = tl.load(rows_of(v, sv_b, sv_h, sv_t, b, kv, j_N, columns), mask=whole_N, other=0.0)
    total_k, total_v = tl.zeros((N, WIDTH), tl.float32), tl.zeros((N, WIDTH), tl.float32)
    for member in range(GROUP):
        h = kv * GROUP + member
        window = tl.load(windows + h)
        decay = tl.load(decays + h) if DECAY else 0.0
        slope = tl.load(slopes + h) if SLOPE else 0.0
        first = begin - past
        if not CAUSAL:
            first = first - window + 1
        first = tl.maximum(0, first) // M * M
        last = tl.minimum(T, begin + N - 1 + window - past)
        for start in range(first, last, M):
            rows = start + tl.arange(0, M)
            real_M = rows < T
            whole_M = real_M[:, None] & real_D[None, :]
            t_M = rows + past
            q_MD = tl.load(rows_of(q, sq_b, sq_h, sq_t, b, h, rows, columns), mask=whole_M, other=0.0)
            grad_MD = tl.load(rows_of(grad, sg_b, sg_h, sg_t, b, h, rows, columns), mask=whole_M, other=0.0)
            at = (b * H + h).to(tl.int64) * T + rows
            lse_M = tl.load(lse + at, mask=real_M, other=0.0)
            lse_M = tl.where(lse_M == float("-inf"), 0.0, lse_M)
            delta_M = tl.load(delta + at, mask=real_M, other=0.0)
            logits = scale * tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION)
            ours, theirs = segments + b * S + t_M, segments + b * S + j_N
            seen = visible_pairs(t_M, j_N, real_M, real_N, window, ours, theirs, CAUSAL, SEGMENTS)
            x, derivative = scores(logits, t_M, j_N, decay, slope, softcap, DECAY, SLOPE, SOFTCAP)
            p = tl.exp(tl.where(seen, x, float("-inf")) - lse_M[:, None])
            total_v += tl.dot(tl.trans(p.to(grad_MD.dtype)), grad_MD, input_precision=PRECISION)
            inner = tl.dot(grad_MD, tl.trans(v_ND), input_precision=PRECISION) - delta_M[:, None]
            grad_logits = p * inner * derivative * scale
            total_k += tl.dot(tl.trans(grad_logits.to(q_MD.dtype)), q_MD, input_precision=PRECISION)
    place_k = rows_of(grad_k, so_b, so_h, so_t, b, kv, j_N, columns)
    place_v = rows_of(grad_v, so_b, so_h, so_t, b, kv, j_N, columns)
    tl.store(place_k, total_k.to(grad_k.dtype.element_ty), mask=whole_N)
    tl.store(place_v, total_v.to(grad_v.dtype.element_ty), mask=whole_N)
