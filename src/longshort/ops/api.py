"""The public op: validation, autocast and the choice of backend. The backends do the work.

Shapes: B batch, H query heads, H_kv key/value heads, T queries, S >= T keys, D head dimension.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.numeric import is_int, is_real
from longshort.ops import schema, sdpa, transforms
from longshort.ops.autocast import has_autocast, without_autocast
from longshort.ops.options import Options, Stats, extremes_of
from longshort.ops.reference import reference
from longshort.ops.smoothing import Smoothing, smooth_keys_of, smooth_values

BACKENDS = ("auto", "reference", "blocked", "triton", "sdpa", "flex")
"""The last two are PyTorch's own attention, used only by name: "auto" never chooses them."""
_TRITON = find_spec("triton") is not None
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ID_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8)


class LogitStats(NamedTuple):
    """Extremes of scale * q.k per head over all visible pairs, before decay, softcap and slope. Not differentiable.

    With smoothing before the softmax, k are the smoothed keys.
    """

    max: Tensor
    """(H,) fp32; -inf for a head with no visible pair; NaN if a visible logit is NaN."""
    min: Tensor | None = None
    """(H,) fp32; +inf for a head with no visible pair; NaN if a visible logit is NaN. None with stats="max"."""

    @property
    def abs_max(self) -> Tensor:
        """(H,) largest absolute logit; -inf for a head with no visible pair. Needs the smallest: stats=True."""
        if self.min is None:
            raise ValueError('abs_max needs the smallest logits, which stats="max" does not measure; use stats=True')
        return torch.maximum(self.max, -self.min)


class AttentionResult(NamedTuple):
    """What `attention` returns."""

    out: Tensor
    """(B, H, T, D), in the dtype of q."""
    lse: Tensor
    """(B, H, T) natural log-sum-exp of each row, fp32 (float64 for float64 inputs). Not differentiable. Empty,
    (0,), with backend="sdpa", which does not return one."""
    stats: LogitStats | None
    """Per-head extremes of the logits; None with stats=False."""

    @property
    def logits(self) -> LogitStats | None:
        """Alias of `stats`."""
        return self.stats


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: HeadPlan,
    *,
    scale: float | None = None,
    causal: bool = True,
    softcap: float | None = None,
    segments: Tensor | None = None,
    sinks: Tensor | None = None,
    smoothing: Smoothing | None = None,
    stats: Stats = False,
    backend: str = "auto",
) -> AttentionResult:
    """Attention in which every head has its own reach.

    For query position t and key position j (queries are the last T of the S positions):

        x[t, j] = softcap( scale * q_t . k_j * exp(-decay |t - j|) ) - slope |t - j|      then the mask, then softmax

    Args:
        q: (B, H, T, D).
        k, v: (B, H_kv, S, D) with H a multiple of H_kv and S >= T.
        plan: reach of each of the H query heads.
        scale: 1 / sqrt(D) if None.
        causal: False is the two-sided form, in which a local head sees window - 1 keys to each side.
        softcap: logits become softcap * tanh(logits / softcap).
        segments: (B, S) integers; a query sees only keys of its own segment, whose first ones are those that streaming
            heads see besides their windows. A negative id is padding, which sees nothing and is seen by nothing; its
            output is zero and its lse -inf.
        sinks: (H,) fp32, a learned score per head that joins each row's softmax with a value of zero, so that a head
            can attend to nothing (gpt-oss); lse includes it, statistics do not, and padding does not see it.
        smoothing: pool along the keys (LaS): the attention rows after the softmax, where lse and statistics remain
            those of the unpooled rows, or the decayed logits before it, where both are those of the pooled logits.
        stats: also return the per-head extremes of the logits; "max" measures only the largest, which is cheaper.
        backend: "auto" chooses; a named backend serves the call or raises, and never falls back. "sdpa" and "flex" are
            PyTorch's own attention, for comparison: see `ops.sdpa` and `ops.flex` for what they support.

    >>> import torch
    >>> from longshort import HeadPlan, attention
    >>> q, k, v = torch.randn(3, 2, 6, 256, 32).unbind()
    >>> result = attention(q, k, v, HeadPlan.long_short(n_heads=6, n_global=1, window=50), stats=True)
    >>> result.out.shape, result.lse.shape, result.stats.abs_max.shape
    (torch.Size([2, 6, 256, 32]), torch.Size([2, 6, 256]), torch.Size([6]))
    """
    q, k, v = as_autocast(q, k, v)
    check_tensors(q, k, v)
    check_options(q, k, plan, scale, softcap, segments)
    _check_causal(causal)
    check_sinks(q, sinks)
    extremes = extremes_of(stats)
    backend = chosen_backend(backend, q)
    pooling = None
    if smoothing is not None:
        k, v, pooling = _smoothed(k, v, plan, smoothing, causal, segments, backend)
    options = Options.of(plan, scale=scale, causal=causal, softcap=softcap)
    if backend == "reference":
        with without_autocast(q):
            out, lse, largest, smallest = reference(
                q, k, v, plan, scale=options.scale_for(q), causal=causal, softcap=softcap, segments=segments,
                pooling=pooling, sinks=sinks,
            )  # fmt: skip
    else:
        if backend in ("sdpa", "flex"):
            if sinks is not None:
                raise ValueError(f'backend="{backend}" cannot serve this call: it has no sinks')
            return AttentionResult(*_peer(backend)(q, k, v, options, segments, extremes), None)
        out, lse, largest, smallest = schema.run(backend, q, k, v, options, segments, extremes, sinks)
    return AttentionResult(out, lse, LogitStats(largest, smallest if extremes == 2 else None) if extremes else None)


def packed_attention(
    qkv: Tensor,
    plan: HeadPlan,
    *,
    n_kv_heads: int | None = None,
    scale: float | None = None,
    causal: bool = True,
    softcap: float | None = None,
    segments: Tensor | None = None,
    sinks: Tensor | None = None,
    stats: Stats = False,
    backend: str = "auto",
) -> AttentionResult:
    """`attention` of queries, keys and values that lie side by side, as one projection makes them.

    Equal to taking them apart, but the Triton kernels write the gradient of qkv in one piece.

    Args:
        qkv: (B, T, (H + 2 H_kv) D): the query heads, then the key heads, then the value heads.
        n_kv_heads: H if None.

    The other arguments are those of `attention`.

    >>> qkv = torch.randn(2, 100, 3 * 64)
    >>> packed_attention(qkv, HeadPlan.long_short(n_heads=4, n_global=1, window=16)).out.shape
    torch.Size([2, 4, 100, 16])
    """
    if not isinstance(plan, HeadPlan):
        raise ValueError(f"plan must be a HeadPlan, got {type(plan).__name__}")
    if n_kv_heads is None:
        n_kv_heads = plan.n_heads
    elif not is_int(n_kv_heads) or n_kv_heads < 1 or plan.n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads must be None or a divisor of the plan's {plan.n_heads} heads, got {n_kv_heads!r}")
    parts = plan.n_heads + 2 * n_kv_heads
    if not isinstance(qkv, Tensor) or qkv.ndim != 3 or qkv.shape[-1] % parts:
        found = tuple(qkv.shape) if isinstance(qkv, Tensor) else type(qkv).__name__
        raise ValueError(
            f"qkv must have 3 dimensions (batch, positions, features), the last one a multiple of {parts} heads, "
            f"got {found}"
        )
    (qkv,) = as_autocast(qkv)
    q, k, v = schema.unpacked(qkv, plan.n_heads, n_kv_heads)
    if chosen_backend(backend, q) != "triton" or transforms.active():
        shared: dict[str, Any] = {"scale": scale, "causal": causal, "softcap": softcap, "segments": segments}
        return attention(q, k, v, plan, **shared, sinks=sinks, stats=stats, backend=backend)
    check_tensors(q, k, v)
    check_options(q, k, plan, scale, softcap, segments)
    _check_causal(causal)
    check_sinks(q, sinks)
    options, extremes = Options.of(plan, scale=scale, causal=causal, softcap=softcap), extremes_of(stats)
    out, lse, largest, smallest = schema.run_packed(qkv, n_kv_heads, options, segments, extremes, sinks)
    return AttentionResult(out, lse, LogitStats(largest, smallest if extremes == 2 else None) if extremes else None)


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as PyTorch's own attention does under autocast, where QK-norm gives fp32 q and k with half-precision v."""
    first = tensors[0]
    if not (isinstance(first, Tensor) and has_autocast(first) and torch.is_autocast_enabled(first.device.type)):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)

    def cast(x: Tensor) -> Tensor:
        eligible = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return x.to(dtype) if eligible else x

    return tuple(cast(x) for x in tensors)


def _smoothed(
    k: Tensor,
    v: Tensor,
    plan: HeadPlan,
    smoothing: Smoothing,
    causal: bool,
    segments: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Smoothing | None]:
    """The keys and values to attend to, and the pooling of logits, which only the reference does as such."""
    if not isinstance(smoothing, Smoothing):
        raise ValueError(f"smoothing must be None or a Smoothing, got {type(smoothing).__name__}")
    smoothing.check(causal=causal)
    if smoothing.stage == "after":
        return k, smooth_values(v, smoothing, segments), None
    smoothing.check_backend(backend, causal=causal, decays=plan.decays)
    if backend == "reference":
        return k, v, smoothing
    return *smooth_keys_of(k, v, smoothing, plan.decays, segments), None


def chosen_backend(backend: str, q: Tensor) -> str:
    """The backend that serves a call with queries like these. Raises if it is named and cannot."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    why = _triton_cannot(q) if backend == "triton" else _flex_cannot(q) if backend == "flex" else None
    if why is not None:
        raise ValueError(f'backend="{backend}" cannot serve this call: {why}')
    if backend != "auto":
        return backend
    return "triton" if q.device.type == "cuda" and _triton_cannot(q) is None else "blocked"


def _triton_cannot(q: Tensor) -> str | None:
    """Why the Triton kernels cannot run, or None. TRITON_INTERPRET=1 runs them on the CPU, slowly, for tests."""
    if not _TRITON:
        return "the package triton is not installed"
    if q.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"it needs a CUDA GPU, and q is on {q.device}"
    if q.dtype == torch.float64:
        return "it computes in float32, bfloat16 and float16, and q is float64"
    if q.shape[-1] > 256:
        return f"its head dim must be at most 256, and q has {q.shape[-1]}"
    return None


def _flex_cannot(q: Tensor) -> str | None:
    from longshort.ops.flex import cannot_run

    return cannot_run(q)


def _peer(backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """FlexAttention is imported when first asked for."""
    if backend == "sdpa":
        return sdpa.attend
    from longshort.ops import flex

    return flex.attend


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 dimensions (batch, heads, positions, head dim), got {tuple(x.shape)}")
        if x.dtype not in _DTYPES:
            raise ValueError(f"{name} must be float32, bfloat16, float16 or float64, got {x.dtype}")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have the dtype of q, {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
    if v.shape[-1] != q.shape[-1]:
        raise ValueError(f"v must have the head dim of q, {q.shape[-1]}, got {v.shape[-1]}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape, got {tuple(k.shape)} and {tuple(v.shape)}")
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k must have the batch size of q, {q.shape[0]}, got {k.shape[0]}")
    if q.shape[3] < 1:
        raise ValueError("q must have a head dim of at least 1, got 0")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise ValueError(f"k must have a number of heads that divides q's {q.shape[1]}, got {k.shape[1]}")
    if q.shape[2] > k.shape[2]:
        raise ValueError(
            f"q must have no more positions than k (queries are the last ones), got T={q.shape[2]} and S={k.shape[2]}"
        )


def check_sinks(q: Tensor, sinks: Tensor | None) -> None:
    if sinks is None:
        return
    if not isinstance(sinks, Tensor):
        raise ValueError(f"sinks must be None or a tensor, got {type(sinks).__name__}")
    wanted = torch.promote_types(q.dtype, torch.float32)
    if sinks.shape != q.shape[1:2] or sinks.dtype != wanted:
        raise ValueError(
            f"sinks must be {wanted} of shape (heads,) = {tuple(q.shape[1:2])}, "
            f"got {sinks.dtype} of shape {tuple(sinks.shape)}"
        )
    if sinks.device != q.device:
        raise ValueError(f"sinks must be on the device of q, {q.device}, got {sinks.device}")


def _check_causal(causal: bool) -> None:
    if not isinstance(causal, bool):
        raise ValueError(f"causal must be True or False, got {causal!r}")


def check_options(
    q: Tensor, k: Tensor, plan: HeadPlan, scale: float | None, softcap: float | None, segments: Tensor | None
) -> None:
    if not isinstance(plan, HeadPlan):
        raise ValueError(f"plan must be a HeadPlan, got {type(plan).__name__}")
    if plan.n_heads != q.shape[1]:
        raise ValueError(f"plan must have one entry for each of the {q.shape[1]} heads of q, got {plan.n_heads}")
    if scale is not None and not (is_real(scale) and math.isfinite(scale)):
        raise ValueError(f"scale must be None or a finite number, got {scale!r}")
    if softcap is not None and not (is_real(softcap) and 0 < softcap < math.inf):
        raise ValueError(f"softcap must be None or a finite number > 0, got {softcap!r}")
    check_segments(q, k, segments)


def check_segments(q: Tensor, k: Tensor, segments: Tensor | None) -> None:
    if segments is None:
        return
    if not isinstance(segments, Tensor):
        raise ValueError(f"segments must be None or a tensor, got {type(segments).__name__}")
    if segments.dtype not in _ID_DTYPES:
        raise ValueError(f"segments must hold signed integers (a negative id is padding), got {segments.dtype}")
    if segments.shape != (k.shape[0], k.shape[2]):
        raise ValueError(
            f"segments must have shape (batch, keys) = {(k.shape[0], k.shape[2])}, got {tuple(segments.shape)}"
        )
    if segments.device != q.device:
        raise ValueError(f"segments must be on the device of q, {q.device}, got {segments.device}")
