"""Attention entropy per layer and head, without forming the attention matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longshort.nn.attention import LSAttention, attention_layers
from longshort.nn.modes import evaluating
from longshort.ops import Smoothing, attention
from longshort.ops.smoothing import smooth_keys


@torch.no_grad()
def attention_entropy(model: nn.Module, tokens: Tensor, **inputs: Any) -> Tensor:
    """Mean entropy in nats of each head's attention, (L, H), over a batch of tokens (B, T).

    With x the logits and p their softmax, the entropy is lse - sum p x, and sum_j p_j q.k_j = q.(sum_j p_j k_j), which
    is attention with the keys in place of the values. A learned sink counts as one more key, of logit s. Smoothing
    after the softmax is not included. The model must be the plain module, not a compiled one.
    """
    check_entropy(model)
    layers = attention_layers(model)
    if not layers:
        raise ValueError(f"model must have an LSAttention layer, got a {type(model).__name__} without one")
    found: list[Tensor] = []

    def measure(layer: LSAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(_entropy(layer, *args, **kwargs))  # here, since a sharded layer has its weights only in a pass

    handles = [layer.register_forward_pre_hook(measure, with_kwargs=True) for layer in layers]
    try:
        with evaluating(model):
            model(tokens, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(found)


def check_entropy(model: nn.Module) -> None:
    """Raise if the entropy cannot be computed from the op's output."""
    for layer in attention_layers(model):
        if layer.softcap is not None or layer.plan.slopes is not None or layer.plan.decays is not None:
            raise ValueError(
                "attention entropy is only known for plain logits: turn off softcap, ALiBi and decay, or the entropy"
            )
        if layer.backend == "sdpa":
            raise ValueError(
                'attention entropy takes the lse, which backend="sdpa" does not give: use another, or turn this off'
            )
        if layer.chunk is not None:
            raise ValueError("attention entropy is only known for whole sequences: turn off chunks, or the entropy")
        pooling = _pooling_of_logits(layer)
        if pooling is not None and (why := pooling.without_keys(causal=layer.causal, decays=None)):
            raise ValueError(f"attention entropy is only known for logits of keys: {why}; or turn off the entropy")
        if pooling is not None and layer.group is not None:
            raise ValueError(
                "attention entropy is not known for smoothed keys where processes share sequences: use one process per "
                'sequence, smoothing_stage="after", or turn off the entropy'
            )


def _pooling_of_logits(layer: LSAttention) -> Smoothing | None:
    return layer.smoothing if layer.smoothing is not None and layer.smoothing.stage == "before" else None


def _entropy(
    layer: LSAttention, x: Tensor, *, positions: Tensor | None = None, segments: Tensor | None = None, **_: Any
) -> Tensor:
    q, k, _v = layer.heads(x, positions)
    pooling, sinks = _pooling_of_logits(layer), layer.sinks_for(q)
    if pooling is not None:
        k = smooth_keys(k, pooling, None, segments)
    options: dict[str, Any] = {"segments": segments, "sinks": sinks, "backend": layer.backend}
    if layer.group is None:
        result = attention(q, k, k, layer.plan, causal=layer.causal, **options)
    else:
        from longshort.ops.sharded import sharded_attention

        result = sharded_attention(q, k, k, layer.plan, group=layer.group, lse=True, **options)
    keys = result.out.to(result.lse.dtype)
    entropy = result.lse - (q.to(keys.dtype) * keys).sum(-1) / layer.head_dim**0.5
    if sinks is not None:
        score = sinks[:, None]
        entropy = entropy - score * (score - result.lse).exp()
    real = result.lse.isfinite()
    total, count = entropy.where(real, 0).sum((0, 2)), real.sum((0, 2))
    if layer.group is not None:
        dist.all_reduce(total, group=layer.group)
        dist.all_reduce(count, group=layer.group)
    return total / count.clamp(min=1)
