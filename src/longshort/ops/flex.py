"""PyTorch's FlexAttention as a backend, chosen by name, on CUDA: compiled, with a block mask made from the plan.

A peer to measure against and to train with. It supports windows, first keys, decays, slopes and softcap, causal and
two-sided, grouped queries and S >= T, and returns the lse. Block masks are cached by shape and plan, so a model makes
one per length. FlexAttention is compiled on its own: a compiled model has a graph break at each call.

Shapes: B batch, H query heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from longshort.ops.options import Options

SMALLEST_HEAD_DIM = 16


@torch.compiler.disable
def attend(
    q: Tensor, k: Tensor, v: Tensor, options: Options, segments: Tensor | None, extremes: int
) -> tuple[Tensor, Tensor]:
    """out (B, H, T, D) and lse (B, H, T)."""
    why = _cannot(segments, extremes)
    if why is not None:
        raise ValueError(f'backend="flex" cannot serve this call: {why}')
    if q.numel() == 0:
        return q.clone(), q.new_empty(q.shape[:3], dtype=torch.float32)
    return computed(_compiled(), q, k, v, options)


def computed(form: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Computed by FlexAttention in this form: compiled or, in tests on a CPU, uncompiled."""
    n_queries, n_keys, device = q.shape[2], k.shape[2], q.device
    out, aux = form(
        q,
        k,
        v,
        score_mod=_score_mod(
            options._replace(windows=(), scale=None, causal=True, firsts=None), n_keys - n_queries, device
        ),
        block_mask=_block_mask(options.windows, options.causal, n_queries, n_keys, device, options.firsts),
        scale=options.scale_for(q),
        enable_gqa=q.shape[1] != k.shape[1],
        kernel_options={"BACKEND": "TRITON"},  # its own choice for few queries, the decode kernel, finds no tile
        return_aux=AuxRequest(lse=True),
    )
    return out, aux.lse.detach()


def cannot_run(q: Tensor) -> str | None:
    """Why FlexAttention cannot take such queries, or None."""
    if q.device.type != "cuda":
        return f"FlexAttention has a backward on CUDA GPUs only, and q is on {q.device}"
    if q.dtype == torch.float64:
        return "it computes in float32, bfloat16 and float16, and q is float64"
    if q.shape[-1] < SMALLEST_HEAD_DIM:
        return f"its head dim must be at least {SMALLEST_HEAD_DIM}, and q has {q.shape[-1]}"
    return None


def _cannot(segments: Tensor | None, extremes: int) -> str | None:
    """Why it cannot compute this, or None."""
    if extremes:
        return (
            "FlexAttention returns only the largest score of a row, after decay, softcap and slope, so there are no "
            "logit statistics; call it with stats=False, and train with telemetry.logits_every=0"
        )
    if segments is not None:
        return "segments would need a new block mask for every batch"
    return None


@cache
def _compiled() -> Callable[..., Any]:
    """fullgraph, so that too many recompilations raise: uncompiled, it would silently build all T x S scores."""
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def _compiled_mask() -> Callable[..., BlockMask]:
    """Compiled, so that the blocks are made without the T x S mask."""
    return torch.compile(create_block_mask)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # autograd may meet it later
def _block_mask(
    windows: tuple[int, ...],
    causal: bool,
    n_queries: int,
    n_keys: int,
    device: torch.device,
    firsts: tuple[int, ...] | None = None,
) -> BlockMask:
    reach, past = torch.tensor(windows, device=device), n_keys - n_queries
    first = None if firsts is None else torch.tensor(firsts, device=device)

    def sees(b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
        offset = t + past - j
        within = offset.abs() < reach[h]
        if first is not None:
            within = within | (j < first[h])
        return within & (offset >= 0) if causal else within

    heads = (
        len(windows) if len(set(zip(windows, firsts or windows, strict=True))) > 1 else None
    )  # one mask if all heads see the same
    create = _compiled_mask() if device.type == "cuda" else create_block_mask
    return create(sees, None, heads, n_queries, n_keys, device=device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _score_mod(options: Options, past: int, device: torch.device) -> Callable[..., Tensor] | None:
    """The change to a logit before the mask; None if there is none."""
    if options.decays is None and options.slopes is None and options.softcap is None:
        return None
    decays, slopes = (
        None if rates is None else torch.tensor(rates, dtype=torch.float32, device=device)
        for rates in (options.decays, options.slopes)
    )
    softcap = options.softcap

    def score(x: Tensor, b: Tensor, h: Tensor, t: Tensor, j: Tensor) -> Tensor:
        distance = (t + past - j).abs()
        if decays is not None:
            x = x * torch.exp(-decays[h] * distance)
        if softcap is not None:
            x = softcap * torch.tanh(x / softcap)
        return x if slopes is None else x - slopes[h] * distance

    return score
