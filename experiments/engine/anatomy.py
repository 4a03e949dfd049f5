"""Where the attention of a trained model goes: how near its mass is, how large its logits, how high its ranks.

Shapes: L layers, H heads, T positions, D head dimension. One sequence and one layer at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from longshort.heads import HeadPlan
from longshort.nn import LSAttention
from longshort.ops.smoothing import Smoothing, smooth_keys

NEAR = 50
"""Keys that count as near, the current one included: the paper's window."""
NOTICED = 0.01
"""A head notices a far key that has more than this weight."""
RANK_POSITIONS = 512
"""The ranks of attention are those of this many first positions, whose queries see no others."""


@torch.no_grad()
def anatomy(model: nn.Module, tokens: Tensor, *, near: int = NEAR) -> dict[str, Any]:
    """Numbers of each head, as lists over layers of lists over heads, averaged over the sequences of tokens (B, T).

    `logit`: the largest |logit|. `near_mass`: attention on the nearest `near` keys, over queries that see more.
    `far_keys`: keys beyond those that have more than 1 % of the weight, per query. `far_noticed`: the share of the far
    mass that they hold. `logit_rank`, `attention_rank`: effective ranks of QK^T and of the attention matrix. Attention
    is the output of the softmax, without any smoothing after it.

    >>> from longshort import GPT, GPTConfig
    >>> found = anatomy(GPT(GPTConfig.preset("tiny")), torch.randint(256, (1, 64)), near=4)
    >>> len(found["near_mass"]), len(found["near_mass"][0])
    (2, 4)
    """
    layers = [module for module in model.modules() if isinstance(module, LSAttention)]
    if any(not layer.causal or layer.chunk is not None for layer in layers):
        raise ValueError("model must have causal attention over whole sequences, got a layer with chunks or two-sided")
    if any(layer.sinks is not None for layer in layers):
        raise ValueError("model must have no sinks, whose weight is neither near nor far, got a layer with sinks")
    was_training = model.training
    model.eval()
    rows: list[dict[str, Tensor]] = []
    try:
        for row in tokens:
            inputs = _layer_inputs(model, layers, row[None])
            measured = [_of_layer(layer, x, near) for layer, x in zip(layers, inputs, strict=True)]
            rows.append({name: torch.stack([layer[name].cpu() for layer in measured]) for name in measured[0]})
    finally:
        model.train(was_training)
    found: dict[str, Any] = {"near": near, "rows": len(rows), "positions": tokens.shape[1]}
    for name in rows[0]:
        stacked = torch.stack([row[name] for row in rows]).double()
        merged = stacked.amax(0) if name == "logit" else stacked.nanmean(0)
        found[name] = [[round(v, 5) if math.isfinite(v) else None for v in heads] for heads in merged.tolist()]
    return found


def effective_rank(singular_values: Tensor) -> Tensor:
    """exp of the entropy of the normalised singular values (Roy & Vetterli 2007), over the last dimension.

    >>> [round(effective_rank(torch.tensor(s)).item(), 3) for s in ([1.0, 1.0, 1.0], [5.0, 0.0, 0.0])]
    [3.0, 1.0]
    """
    shares = singular_values / singular_values.sum(-1, keepdim=True)
    return torch.exp(-torch.special.xlogy(shares, shares).sum(-1))


def _layer_inputs(model: nn.Module, layers: list[LSAttention], tokens: Tensor) -> list[Tensor]:
    """What each attention layer is given."""
    seen: list[Tensor] = []
    handles = [layer.register_forward_pre_hook(lambda module, args: seen.append(args[0])) for layer in layers]
    try:
        model(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _of_layer(layer: LSAttention, x: Tensor, near: int) -> dict[str, Tensor]:
    """The numbers of one layer's heads, (H,) each."""
    q, k, _ = layer.heads(x)
    q_HTD, k_HTD = (y[0].float() for y in (q, k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)))
    with torch.autocast(x.device.type, enabled=False):  # q and k have the model's precision; fp32 from here on
        return _of_heads(*_attention(q_HTD, k_HTD, layer.plan, layer.softcap, layer.smoothing), q_HTD, k_HTD, near)


def _of_heads(
    logits: Tensor, weights: Tensor, visible: Tensor, q_HTD: Tensor, k_HTD: Tensor, near: int
) -> dict[str, Tensor]:
    if not bool(logits.isfinite().all()):
        nothing = q_HTD.new_full(q_HTD.shape[:1], torch.nan)
        return dict.fromkeys(("logit", "near_mass", "far_keys", "far_noticed", "logit_rank", "attention_rank"), nothing)
    positions = torch.arange(q_HTD.shape[1], device=q_HTD.device)
    far = (positions[:, None] - positions >= near) & visible
    asked = far.any(-1).sum(-1).clamp(min=1)  # queries that see a far key
    far_weights = weights.masked_fill(~far, 0.0)
    noticed, far_mass = far_weights > NOTICED, far_weights.sum((1, 2))
    return {
        "logit": logits.masked_fill(~visible, 0.0).abs().amax((1, 2)),
        "near_mass": 1.0 - far_mass / asked,
        "far_keys": noticed.sum((1, 2)) / asked,
        "far_noticed": (far_weights * noticed).sum((1, 2)) / far_mass,  # NaN for a head that sees nothing far
        "logit_rank": effective_rank(_product_values(q_HTD, k_HTD)),
        # The CPU is faster at this than a GPU.
        "attention_rank": effective_rank(torch.linalg.svdvals(weights[:, :RANK_POSITIONS, :RANK_POSITIONS].cpu())),
    }


def _attention(
    q_HTD: Tensor, k_HTD: Tensor, plan: HeadPlan, softcap: float | None, smoothing: Smoothing | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, weights and visibility, (H, T, T), by the definition of the op; logits that are pooled, pooled."""
    if smoothing is not None and smoothing.stage == "before":
        smoothing.check_backend("anatomy", causal=True, decays=plan.decays)
        k_HTD = smooth_keys(k_HTD[None], smoothing, plan.decays)[0]
    positions = torch.arange(q_HTD.shape[1], device=q_HTD.device)
    distance = positions[:, None] - positions
    reach = torch.tensor([w or len(positions) for w in plan.windows], device=q_HTD.device)[:, None, None]
    visible = (distance >= 0) & (distance < reach)
    logits = q_HTD @ k_HTD.mT / q_HTD.shape[-1] ** 0.5
    x = logits
    if plan.decays is not None:
        x = x * torch.exp(-_per_head(plan.decays, x) * distance.abs())
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    if plan.slopes is not None:
        x = x - _per_head(plan.slopes, x) * distance
    return logits, x.masked_fill(~visible, -torch.inf).softmax(-1), visible


def _per_head(rates: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(rates, dtype=like.dtype, device=like.device)[:, None, None]


def _product_values(q_HTD: Tensor, k_HTD: Tensor) -> Tensor:
    """Singular values of Q K^T, from the D x D product of the two triangles of their QR decompositions."""
    return torch.linalg.svdvals(torch.linalg.qr(q_HTD).R @ torch.linalg.qr(k_HTD).R.mT)
