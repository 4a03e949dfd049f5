"""QK-clip (Kimi K2, arXiv 2507.20534): after a step, rescale the weights of heads whose logits passed a bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longshort.nn import LSAttention, SigmaLinear
from longshort.nn.attention import attention_layers
from longshort.parallel.shards import local, local_rows


def check_qk_clip(model: nn.Module) -> None:
    """Raise if rescaling the weights would change no logit."""
    for layer in attention_layers(model):
        if layer.q_norm is not None:
            raise ValueError("qk_clip must be off with qk_norm, which undoes any rescaling of the weights")
        if isinstance(layer.qkv, SigmaLinear):
            raise ValueError("qk_clip must be off with sigma_reparam, which undoes any rescaling of the weights")


@torch.no_grad()
def qk_clip(model: nn.Module, largest_LH: Tensor, *, threshold: float = 100.0, alpha: float = 0.5) -> Tensor:
    """Rescale the heads whose largest logit in the step exceeded `threshold` back to it; return the factors (L, H).

    With gamma = threshold / max, queries are scaled by gamma^alpha and keys by gamma^(1 - alpha). Where query heads
    share a key head, the queries take the whole factor: another head's keys must not change. A head whose largest
    logit is not above the threshold (it may be negative, or -inf without a visible pair) keeps its weights unchanged.
    """
    check_qk_clip(model)
    layers = attention_layers(model)
    _check(layers, largest_LH, threshold, alpha)
    above = (largest_LH > threshold) & largest_LH.isfinite()  # an infinite logit would set the weights to zero
    factors = torch.where(above, threshold / largest_LH, 1.0)
    for layer, gamma_H in zip(layers, factors, strict=True):
        shared = layer.n_kv_heads != layer.n_heads
        on_q = gamma_H if shared else gamma_H**alpha
        on_k = torch.ones(layer.n_kv_heads, device=gamma_H.device) if shared else gamma_H ** (1 - alpha)
        scale = torch.cat((on_q, on_k)).repeat_interleave(layer.head_dim)
        for parameter in (layer.qkv.weight, layer.qkv.bias):
            if parameter is not None:
                part, factor = local(parameter), local_rows(scale, parameter)
                part[: len(factor)].mul_(factor.to(part).view(-1, *(1,) * (part.ndim - 1)))
    return factors


def _check(layers: list[LSAttention], largest_LH: Tensor, threshold: float, alpha: float) -> None:
    if not layers:
        raise ValueError("model must have an LSAttention layer, got one without")
    wanted = (len(layers), layers[0].n_heads)
    if not isinstance(largest_LH, Tensor) or largest_LH.shape != wanted:
        found = tuple(largest_LH.shape) if isinstance(largest_LH, Tensor) else type(largest_LH).__name__
        raise ValueError(f"largest_LH must be a tensor of shape (layers, heads) = {wanted}, got {found}")
    if not 0 < threshold < math.inf:
        raise ValueError(f"threshold must be a finite number > 0, got {threshold!r}")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be a number from 0 to 1, got {alpha!r}")
