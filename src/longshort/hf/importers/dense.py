"""Dense decoders of transformers as a `GPT`: the families that differ from Llama by settings alone.

The weights are read by their names in transformers' models, and their reach, positions and scales from config.json.
What a family could have and a `GPT` has not is refused, with the reason, before any weight is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longshort.heads import HeadPlan, narrower
from longshort.hf.importers.layout import Tensors, listed, loaded
from longshort.hf.importers.plans import saved_plans
from longshort.hf.importers.rope import Rope, rope_of
from longshort.hf.importers.source import Source
from longshort.model import GPT, GPTConfig
from longshort.numeric import check_count, is_real
from longshort.reach import LayerReach


class Family(NamedTuple):
    """What sets a family of models apart from Llama."""

    placement: str = "pre"
    """Where the norms of a block are."""
    qk_norm: str | None = None
    windows: str = "none"
    """Which layers slide: none, all, or those that `layer_types` names."""
    gemma: bool = False
    """Gains as 1 + w, embeddings times sqrt(width), a scale of the logits of its own, caps of logits."""
    qkv_bias: bool = False
    """Queries, keys and values have biases, whatever the configuration says."""
    unrotated: str = "none"
    """Which layers are not rotated: none, those `marked` 0 in `no_rope_layers`, or `full` ones beside sliding ones."""


FAMILIES = {
    "llama": Family(),
    "mistral": Family(windows="all"),
    "qwen2": Family(windows="layers", qkv_bias=True),
    "qwen3": Family(windows="layers", qk_norm="head"),
    "gemma2": Family(windows="layers", placement="sandwich", gemma=True),
    "gemma3_text": Family(windows="layers", placement="sandwich", gemma=True, qk_norm="head"),
    "olmo2": Family(placement="post", qk_norm="width"),
    "olmo3": Family(windows="layers", placement="post", qk_norm="width"),
    "smollm3": Family(windows="layers", unrotated="marked"),
    "exaone4": Family(windows="layers", placement="post", qk_norm="head", unrotated="full"),
}
"""The families by the `model_type` of their config.json."""
_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu"}
_NORMS = {
    "pre": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "post": {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "attention_norm": "input_layernorm",
        "attention_out_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_out_norm": "post_feedforward_layernorm",
    },
}
_PARTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "attention.q_norm.norm": ("self_attn.q_norm",),
    "attention.k_norm.norm": ("self_attn.k_norm",),
    "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
"""Our layers, and theirs whose rows they hold."""
_WHOLE = {"embedding": "embed_tokens", "norm": "norm", "head": "lm_head"}
_PREFIXES = re.compile(r"^(_orig_mod\.|module\.)*(model\.)?")
_TABLE = re.compile(r".*rotary_emb\.\w+")
"""Tables of angles that older code saved with the weights."""


def from_dense(source: Source) -> GPT:
    """The model of one of the `FAMILIES`; its logits equal transformers' up to fp32 rounding."""
    kind, named = str(source.config.get("model_type")), source.named
    _check_kind(kind, source.config, named)
    family, theirs = FAMILIES[kind], their_config(kind, source.config, named)
    for name, most in (("num_hidden_layers", 10_000), ("num_attention_heads", 10_000), ("sliding_window", 2**31 - 1)):
        if (value := getattr(theirs, name, None)) is not None:
            check_count(f"{named}: {name}", value, most=most)
    biased = _biased(family, theirs)
    sizes = {"n_layers": theirs.num_hidden_layers, "n_heads": theirs.num_attention_heads}
    plans = saved_plans(source.config, **sizes, named=named)
    ours = _our_config(kind, family, theirs, bool(biased), plans, named)
    return loaded(ours, _our_tensors(source, family, ours, biased), source=named)


def _check_kind(kind: str, config: Mapping[str, Any], named: str) -> None:
    experts = [name for name in config if "expert" in name and config[name]]
    reason = None
    if experts:
        reason = f"it is a mixture of experts ({experts[0]}={config[experts[0]]}), and a GPT has one MLP per block"
    elif kind == "gemma3":
        reason = "it reads images too; save its language model, of type gemma3_text, and import that"
    elif kind not in FAMILIES:
        reason = f"model_type must be one of gpt2, longshort, {', '.join(FAMILIES)}"
    elif config.get("quantization_config"):
        reason = "its weights are quantized; load it with transformers, dequantize and save it"
    if reason is not None:
        raise ValueError(f"{named}: a model of type {kind!r} cannot be imported: {reason}")


def their_config(kind: str, config: Mapping[str, Any], named: str) -> Any:
    """The configuration as transformers reads it: with every default, and older spellings in today's form."""
    try:
        from huggingface_hub.errors import StrictDataclassError
        from transformers import AutoConfig
    except ImportError:
        raise ValueError("import needs transformers >= 5.17 for this model: pip install 'longshort[hf]'") from None
    try:
        return AutoConfig.for_model(**dict(config) | {"model_type": kind})
    except (StrictDataclassError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{named}: config.json must be that of a model of type {kind}, got: {error}") from None


def _biased(family: Family, config: Any) -> set[str]:
    """Their layers that have a bias."""
    found = set(_PARTS["attention.qkv"]) if family.qkv_bias else set()
    if getattr(config, "attention_bias", False):
        found |= {*_PARTS["attention.qkv"], *_PARTS["attention.out"]}
    if getattr(config, "mlp_bias", False):
        found |= {*_PARTS["mlp.up"], *_PARTS["mlp.down"]}
    return found


def _our_config(
    kind: str, family: Family, config: Any, bias: bool, plans: list[HeadPlan] | None, named: str
) -> GPTConfig:
    activation = config.hidden_activation if family.gemma else config.hidden_act
    if activation not in _ACTIVATIONS:
        choices = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{named}: the activation of the gated MLP must be one of {choices}, got {activation!r}")
    if getattr(config, "use_bidirectional_attention", False):
        raise ValueError(f"{named}: use_bidirectional_attention must be False in a causal model, got True")
    n_heads, n_kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // n_heads
    windows = _windows(family, config, named)
    rope = rope_of(config.rope_parameters, windows, named)
    fields: dict[str, Any] = {}
    if family.gemma:
        fields |= _gemmas(kind, config, head_dim, named)
    if family.qk_norm is not None:
        fields |= {"qk_norm": family.qk_norm, "qk_norm_eps": config.rms_norm_eps}
    rotated = _rotated(family, config, named)
    if plans is not None or any(window is not None for window in windows) or not all(rotated):
        plans = plans or [HeadPlan.full(n_heads)] * len(windows)
        fields["reach"] = _reach(plans, windows, rotated, rope, named)
    try:
        return GPTConfig(
            vocab_size=config.vocab_size,
            context=config.max_position_embeddings,
            n_layers=config.num_hidden_layers,
            width=config.hidden_size,
            n_heads=n_heads,
            n_kv_heads=None if n_kv_heads == n_heads else n_kv_heads,
            head_dim=None if head_dim * n_heads == config.hidden_size else head_dim,
            ff_width=config.intermediate_size,
            positions="rotary",
            rope_theta=rope.theta,
            rope_scaling=rope.scaling,
            mlp=_ACTIVATIONS[activation],
            norm="rms",
            norm_placement=family.placement,
            norm_eps=config.rms_norm_eps,
            bias=bias,
            tie_embeddings=config.tie_word_embeddings,
            init_std=config.initializer_range or 0.02,
            **fields,
        )
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from None


def _gemmas(kind: str, config: Any, head_dim: int, named: str) -> dict[str, Any]:
    cap, scalar = config.attn_logit_softcapping, config.query_pre_attn_scalar
    if cap is not None and kind != "gemma2":
        # transformers reads the field in this family and does not apply it.
        raise ValueError(f"{named}: attn_logit_softcapping must be null for {kind}, got {cap}")
    if not is_real(scalar) or not scalar > 0:
        raise ValueError(f"{named}: query_pre_attn_scalar must be a number above 0, got {scalar!r}")
    return {
        "norm_unit_offset": True,
        "embedding_scale": config.hidden_size**0.5,
        "attention_scale": None if scalar == head_dim else scalar**-0.5,
        "softcap": cap,
        "logit_softcap": config.final_logit_softcapping,
    }


def _windows(family: Family, config: Any, named: str) -> list[int | None]:
    """The window of each layer, None where it sees everything."""
    n_layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    if family.windows == "none" or (family.windows == "all" and window is None):
        return [None] * n_layers
    types = ["sliding_attention"] * n_layers if family.windows == "all" else list(config.layer_types)
    unknown = [kind for kind in types if kind not in ("sliding_attention", "full_attention")]
    if unknown:
        raise ValueError(f"{named}: layer_types must be sliding_attention or full_attention, got {unknown[0]!r}")
    if len(types) != n_layers:
        raise ValueError(f"{named}: layer_types must have one entry for each of {n_layers} layers, got {len(types)}")
    if "sliding_attention" in types and window is None:
        raise ValueError(f"{named}: sliding_window must be set for sliding layers (and use_sliding_window), got None")
    return [window if kind == "sliding_attention" else None for kind in types]


def _rotated(family: Family, config: Any, named: str) -> list[bool]:
    """Whether the heads of each layer are rotated."""
    n_layers = config.num_hidden_layers
    if family.unrotated == "marked":
        marks = config.no_rope_layers
        if not isinstance(marks, list) or len(marks) != n_layers:
            raise ValueError(
                f"{named}: no_rope_layers must have one entry for each of {n_layers} layers, got {marks!r}"
            )
        return [bool(mark) for mark in marks]
    if family.unrotated == "full" and config.sliding_window is not None:
        return [kind == "sliding_attention" for kind in config.layer_types]
    return [True] * n_layers


def _reach(
    plans: list[HeadPlan], windows: list[int | None], rotated: list[bool], rope: Rope, named: str
) -> tuple[LayerReach, ...]:
    """The layers' plans, cut to the window that the layer has, which may be wider than the context."""
    layers, scaled = [], rope.scaling is not None and rope.scaling.heads == "global"
    for number, (plan, window, turns) in enumerate(zip(plans, windows, rotated, strict=True)):
        if scaled and window is None and plan.n_global < plan.n_heads:
            raise ValueError(
                f"{named}: head_plans must leave every head of layer {number} global, got {list(plan.windows)}: its "
                "positions are scaled, and a GPT does not scale those of local heads beside them"
            )
        base = None if window is None else rope.local_theta
        share = 1.0 if turns else 0.0
        own = replace(plan, windows=tuple(narrower(w, window) for w in plan.windows))
        other = base if own.n_global else None
        layers.append(LayerReach(plan=own, local_base=base, global_base=other, local_share=share, global_share=share))
    return tuple(layers)


def _our_tensors(source: Source, family: Family, ours: GPTConfig, biased: set[str]) -> Tensors:
    """Their tensors, joined and renamed; what is left over or lacking is an error that names it as they do."""
    theirs = {_PREFIXES.sub("", name): x for name, x in source.tensors().items() if not _TABLE.fullmatch(name)}
    _check_tensors(theirs, source.named)
    whole = dict(_WHOLE)
    if ours.tie_embeddings:
        _check_tied(theirs, source.named)
        del whole["head"]
    made_of: dict[str, tuple[str, ...]] = {f"{our}.weight": (f"{their}.weight",) for our, their in whole.items()}
    for layer in range(ours.n_layers):
        for our, parts in _block_parts(family).items():
            norm = our.endswith("norm")
            for kind in ("weight", "bias") if ours.bias and not norm else ("weight",):
                made_of[f"blocks.{layer}.{our}.{kind}"] = tuple(f"layers.{layer}.{part}.{kind}" for part in parts)
    absent = {part for parts in made_of.values() for part in parts if part.endswith(".bias")}
    absent -= {f"layers.{layer}.{part}.bias" for layer in range(ours.n_layers) for part in biased}
    needed = {part for parts in made_of.values() for part in parts} - absent
    missing, unknown = needed - theirs.keys(), theirs.keys() - needed
    if missing or unknown:
        raise ValueError(f"{source.named}: weights do not fit: missing {listed(missing)}; unknown {listed(unknown)}")
    for part in absent:  # zeros, where other layers of the model have a bias
        theirs[part] = torch.zeros(len(theirs[part.replace(".bias", ".weight")]))
    found = {
        our: torch.cat([theirs[part].to("cpu", torch.float32) for part in parts]) for our, parts in made_of.items()
    }
    if family.gemma:  # our QK-norm holds the gain itself
        found = {our: 1 + x if ".q_norm." in our or ".k_norm." in our else x for our, x in found.items()}
    return found


def _block_parts(family: Family) -> dict[str, tuple[str, ...]]:
    """What each layer of a block is made of."""
    norms = {our: (their,) for our, their in _NORMS[family.placement].items()}
    return norms | {our: parts for our, parts in _PARTS.items() if family.qk_norm or not our.endswith("norm")}


def _check_tensors(theirs: Mapping[str, Any], named: str) -> None:
    for name, x in theirs.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{named}: {name} must be a tensor, got {type(x).__name__}")
        if not x.is_floating_point() or x.element_size() < 2:
            raise ValueError(f"{named}: {name} must hold floating-point numbers of 16 bits or more, got {x.dtype}")


def _check_tied(theirs: Tensors, named: str) -> None:
    """Drop a copy of the embedding from the head's place."""
    head = theirs.pop("lm_head.weight", None)
    if head is not None and not torch.equal(head, theirs.get("embed_tokens.weight", torch.empty(0))):
        raise ValueError(
            f"{named}: lm_head.weight must equal embed_tokens.weight with tie_word_embeddings, got another matrix"
        )
