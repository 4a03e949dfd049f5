"""GPT-2 in the Hugging Face format, as a model in which every head is global, or as its `head_plans` say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longshort.heads import HeadPlan
from longshort.hf.importers.layout import Tensors, filled, sizes, weights
from longshort.hf.importers.plans import saved_plans
from longshort.hf.importers.source import Weights, open_source
from longshort.model import GPT, GPTConfig
from longshort.numeric import is_int, is_real

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
"""Names of the Conv1D layers, whose weight is (in, out)."""


def from_gpt2(source: Weights, config: Mapping[str, Any] | None = None) -> GPT:
    """A `GPT` with GPT-2's weights; its logits equal transformers' up to fp32 rounding.

    Its heads are plain, unless head plans were saved with it.

    Args:
        source: a folder written by `save_pretrained`, a safetensors file, the state dict of a `GPT2LMHeadModel` or
            `GPT2Model`, or such a model itself.
        config: the values of config.json, needed with a state dict; otherwise read from the weights' folder.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> theirs = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()
    >>> ours = from_gpt2(theirs)
    >>> import torch
    >>> tokens = torch.randint(100, (1, 50))
    >>> torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-5)
    True
    """
    read, config, named = open_source(source, config)
    kind = config.get("model_type", "gpt2")
    if kind != "gpt2":
        raise ValueError(f"{named} must hold a model of type gpt2, got {kind!r}")
    tensors = weights(read(), source=named)
    tensors = {name: x.mT if name.endswith(_TRANSPOSED) else x for name, x in tensors.items()}
    fields = sizes(tensors, source=named)
    n_heads = config.get("n_head", config.get("num_attention_heads", 12))  # transformers reads both names
    if not is_int(n_heads) or n_heads < 1 or fields["width"] % n_heads:
        raise ValueError(f"{named}: n_head must divide the width {fields['width']}, got {n_heads}")
    epsilon = config.get("layer_norm_epsilon", 1e-5)
    if not is_real(epsilon) or not epsilon > 0:
        raise ValueError(f"{named}: layer_norm_epsilon must be a number above 0, got {epsilon!r}")
    activation = config.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        choices = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{named}: activation_function must be one of {choices}, got {activation!r}")
    plans = saved_plans(config, n_layers=fields["n_layers"], n_heads=n_heads, named=named)
    if plans is not None:
        fields["plans"] = tuple(_within(plan, fields["context"]) for plan in plans)
    ours = GPTConfig(
        n_heads=n_heads,
        mlp=_ACTIVATIONS[activation],
        norm_eps=epsilon,
        **fields,
    )
    return filled(ours, _with_our_scale(tensors, config, ours), source=named)


def _within(plan: HeadPlan, context: int) -> HeadPlan:
    return replace(plan, windows=tuple(w and min(w, context) for w in plan.windows))


def _with_our_scale(tensors: Tensors, config: Mapping[str, Any], ours: GPTConfig) -> Tensors:
    """A logit scale other than 1 / sqrt(head dim) is folded into the queries."""
    head_dim = ours.width // ours.n_heads
    base = 1.0 if config.get("scale_attn_weights", True) else head_dim**0.5
    scaled = dict(tensors)
    for layer in range(ours.n_layers):
        factor = base / (layer + 1) if config.get("scale_attn_by_inverse_layer_idx", False) else base
        for name in (f"h.{layer}.attn.c_attn.weight", f"h.{layer}.attn.c_attn.bias"):
            if factor != 1 and name in scaled:
                scaled[name] = scaled[name].float().clone()
                scaled[name][: ours.width] *= factor
    return scaled
