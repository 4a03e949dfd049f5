"""Attention calls of a model while it runs, and the probabilities in them, a block of queries at a time.

Shapes: H query heads, R queries of a block, S keys, D head dimension. One sequence at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.heads import HeadPlan
from longshort.hf.head_plans import LayerCall, Observer, observed_by, use_head_plan
from longshort.hf.shell import LongShortPreTrainedModel
from longshort.nn.attention import LSAttention, attention_layers
from longshort.ops import attention

AT_ONCE = 1 << 24
"""Probabilities of a block: 64 MiB in fp32, of which a few copies exist at a time."""


def make_observable(model: PreTrainedModel) -> None:
    """Let `attention_calls` see every layer: other models than ours run our attention, with the plans they have."""
    if isinstance(model, LongShortPreTrainedModel):
        for layer in attention_layers(model):
            if layer.smoothing is not None or layer.chunk is not None:
                what = "attention_chunk" if layer.smoothing is None else "smoothing"
                raise ValueError(f"model must attend key by key to be measured, got one with {what}")
        return
    config = model.config.get_text_config()
    saved = getattr(config, "head_plans", None)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        raise ValueError(f"model must have num_attention_heads heads in every layer, got {heads!r}")
    use_head_plan(model, [HeadPlan.from_dict(plan) for plan in saved] if saved else HeadPlan.full(heads))


@contextmanager
def attention_calls(model: PreTrainedModel, observe: Observer) -> Iterator[None]:
    """Pass every attention call of the enclosed forward passes of this model, without a cache, to `observe`."""
    if not isinstance(model, LongShortPreTrainedModel):
        with observed_by(observe):
            yield
        return
    handles = [
        layer.register_forward_pre_hook(_calling(observe, number), with_kwargs=True)
        for number, layer in enumerate(attention_layers(model))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _calling(observe: Observer, number: int) -> Any:
    def before(layer: LSAttention, args: tuple[Tensor, ...], given: dict[str, Any]) -> None:
        q, k, v = layer.heads(args[0], given.get("positions"))
        options: dict[str, Any] = {"scale": None, "softcap": layer.softcap, "segments": given.get("segments")}
        options["sinks"] = layer.sinks_for(q)
        result = attention(q, k, v, layer.plan, stats=True, **options)
        observe(LayerCall(layer=number, q=q, k=k, v=v, plan=layer.plan, options=options, result=result))

    return before


def probabilities(call: LayerCall, start: int) -> Iterator[tuple[int, Tensor]]:
    """The first query of each block and its probabilities (H, R, S), from query `start` on; the key's sums with a
    learned sink are below 1."""
    q, k, lse = _single(call)
    length, heads = q.shape[1], len(q)
    rows = max(1, AT_ONCE // (heads * length))
    for first in range(start, length, rows):
        last = min(first + rows, length)
        at = torch.arange(first, last, device=q.device)
        keys = torch.arange(last, device=q.device)
        scores = _scores(call, q[:, first:last] @ k[:, :last].mT, at[:, None] - keys, keys)
        yield first, torch.exp(scores - lse[:, first:last, None])


def weights_of_pairs(call: LayerCall, queries: Tensor, keys: Tensor) -> Tensor:
    """(H, n): the probability that each of n queries gives to its key."""
    q, k, lse = _single(call)
    queries, keys = queries.to(q.device), keys.to(q.device)
    products = (q[:, queries] * k[:, keys]).sum(-1)
    return torch.exp(_scores(call, products, queries - keys, keys) - lse[:, queries])


def _single(call: LayerCall) -> tuple[Tensor, Tensor, Tensor]:
    """q and k (H, T, D) with as many heads, in fp32 or more, and lse (H, T), of a batch of one."""
    if call.q.shape[0] != 1 or call.q.shape[2] != call.k.shape[2] or call.options["segments"] is not None:
        raise ValueError("sequences must be measured one by one, whole and without padding, got a batch or a cache")
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    k = call.k[0].to(dtype).repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=0)
    return call.q[0].to(dtype), k, call.result.lse[0].to(dtype)


def _scores(call: LayerCall, products: Tensor, distance: Tensor, keys: Tensor) -> Tensor:
    """What the softmax takes, by the definition of the op; `products` is q . k, with heads first."""
    plan, softcap, scale = call.plan, call.options["softcap"], call.options["scale"]
    per_head = (-1, *(1,) * distance.ndim)

    def rates(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=products.dtype, device=products.device).view(per_head)

    x = products * (call.q.shape[-1] ** -0.5 if scale is None else scale)
    if plan.decays is not None:
        x = x * torch.exp(-rates(plan.decays) * distance)
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    if plan.slopes is not None:
        x = x - rates(plan.slopes) * distance
    windows = torch.tensor([w or call.k.shape[2] for w in plan.windows], device=x.device).view(per_head)
    seen = distance < windows
    if plan.firsts is not None:
        seen = seen | (keys < torch.tensor(plan.firsts, device=x.device).view(per_head))
    return x.masked_fill(~(seen & (distance >= 0)), -torch.inf)
