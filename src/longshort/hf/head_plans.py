"""Head plans for transformers' own decoders: Llama, Qwen, Mistral, GPT-2 and others that use its attention interface.

Importing this registers the attention `longshort` with transformers. How far each head sees is part of the model's
configuration, as `head_plans`, and is saved with it, with the attention's name. Calls can be observed while a model
runs.

Shapes: B batch, H query heads, T new tokens, S cached and new ones, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from longshort.heads import HeadPlan
from longshort.hf.planned_cache import planned_layers
from longshort.ops import AttentionResult, LogitStats, attention

ATTENTION_NAME = "longshort"
"""The name of the attention, for `attn_implementation`."""
_UNKNOWN = ("position_bias", "cache", "head_mask", "indices", "block_indices")
"""Options of some models' attention that the op does not support: biases, paged caches, selected keys."""
_MADE = torch.int32
"""The type of what `head_plan_mask` returns, by which other masks of four dimensions are told from it and refused."""


@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """One layer's attention, as it was computed."""

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    plan: HeadPlan
    options: dict[str, Any]
    result: AttentionResult


Observer = Callable[[LayerCall], None]
_observers: list[Observer] = []
"""Called with every attention call; while there is an observer, calls compute statistics."""


def use_head_plan(model: PreTrainedModel, plan: HeadPlan | Sequence[HeadPlan]) -> None:
    """Set the reach of a decoder's heads, the same in every layer or layer by layer.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    >>> use_head_plan(model, HeadPlan.long_short(n_heads=4, n_global=1, window=16))
    >>> model.config.head_plans[1]["windows"]
    [None, 16, 16, 16]
    """
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(f"model must use transformers' attention interface, got a {type(model).__name__}")
    config = model.config.get_text_config()
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    plans = [plan] * layers if isinstance(plan, HeadPlan) else list(plan)
    if len(plans) != layers:
        raise ValueError(f"plan must be one HeadPlan or one for each of the model's {layers} layers, got {len(plans)}")
    for layer, own in enumerate(plans):
        if own.n_heads != heads:
            raise ValueError(f"plan must have the model's {heads} heads, got {own.n_heads} in layer {layer}")
    if getattr(config, "index_topk", None):
        raise ValueError(
            f"model must attend to all keys, got {type(model).__name__} with index_topk={config.index_topk}"
        )
    model.set_attn_implementation(_named_for(model.config))
    config.head_plans = [own.to_dict() for own in plans]


@contextmanager
def watch_logits() -> Iterator[dict[int, LogitStats]]:
    """Extremes of each head's logits over the enclosed forward passes of one model with head plans, by layer.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    >>> use_head_plan(model, HeadPlan.full(4))
    >>> with watch_logits() as seen:
    ...     _ = model(torch.zeros(1, 5, dtype=torch.long))
    >>> seen[1].abs_max.shape
    torch.Size([4])
    """
    seen: dict[int, LogitStats] = {}

    def observe(call: LayerCall) -> None:
        found = call.result.stats
        assert found is not None and found.min is not None
        if (before := seen.get(call.layer)) is not None and before.min is not None:
            found = LogitStats(torch.maximum(before.max, found.max), torch.minimum(before.min, found.min))
        seen[call.layer] = found

    with observed_by(observe):
        yield seen


def head_plan_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer, with the mask from `head_plan_mask`. Returns (B, T, H, D).

    `s_aux` is transformers' name of the sinks (H,), as in GPT-OSS.
    """
    if dropout:
        name = _dropout_field(module.config)
        raise ValueError(f"{name} must be 0.0 with {ATTENTION_NAME} attention, got {dropout}")
    if unknown := [name for name in _UNKNOWN if others.get(name) is not None]:
        raise ValueError(f"{ATTENTION_NAME} attention does not support {', '.join(unknown)}, which this model uses")
    segments, window, forgotten = _read(attention_mask)
    if window is not None and (sliding_window is None or window < sliding_window):
        sliding_window = window
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise ValueError(f"model must be causal with {ATTENTION_NAME} attention, got two-sided {type(module).__name__}")
    plan = _plan_of(module, query.shape[1], sliding_window)
    if plan.firsts is not None and forgotten:
        raise ValueError(
            "past_key_values must keep the first keys, which heads of head_plans see, got a cache that forgot them: "
            "leave cache_implementation out, or make DynamicCache(config=model.config) after the plan is set"
        )
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "segments": segments}
    options["sinks"] = None if s_aux is None else s_aux.to(torch.promote_types(query.dtype, torch.float32))
    result = attention(query, key, value, plan, stats=bool(_observers), **options)
    for observe in _observers:
        layer = _layer(module)
        observe(LayerCall(layer=layer, q=query, k=key, v=value, plan=plan, options=options, result=result))
    return result.out.transpose(1, 2).contiguous(), None


def head_plan_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """Which packed sequence each token belongs to, -1 for padding, as a tensor (B, F, 1 + the layer's window or 0, S).

    It has four dimensions because transformers takes such a mask for a finished one. F is 2 if the cache has forgotten
    keys before these S, else 1. S is 0 if there is one sequence and no padding; the mask is None if there is no window
    and nothing is forgotten either.
    """
    if isinstance(q_offset, Tensor) or q_offset + q_length != kv_offset + kv_length:
        raise ValueError(
            f"{ATTENTION_NAME} attention needs a cache that grows and a mask of the cached and the new tokens: leave "
            "cache_implementation out, and give attention_mask that length"
        )
    traced = torch.compiler.is_compiling()  # then values are unknown, and padding and packing are assumed
    ids = None
    if mask_function is not causal_mask_function:
        at = kv_offset + torch.arange(1, kv_length, device=device)
        row, head = torch.arange(batch_size, device=device)[:, None], torch.zeros((), dtype=torch.long, device=device)
        if use_vmap or (not traced and torch.any(mask_function(row, head, at - 1, at))):
            raise ValueError(
                f"{ATTENTION_NAME} attention supports no other masks than causal ones, windows, padding and packing"
            )
        apart = ~mask_function(row, head, at, at - 1).expand(batch_size, -1)
        ids = nn.functional.pad(apart.long().cumsum(dim=1), (1, 0)) if traced or apart.any() else None
    if attention_mask is not None:
        real = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
        if real.shape[1] != kv_length:
            shape = tuple(attention_mask.shape)
            raise ValueError(f"attention_mask must cover the {kv_length} cached and new tokens, got shape {shape}")
        if traced or not real.all():
            ids = torch.where(real, 0 if ids is None else ids, -1)
    sizes = (2 if kv_offset > 0 else 1, 1 + (local_size or 0))
    if ids is None:
        return None if sizes == (1, 1) else torch.empty(batch_size, *sizes, 0, dtype=_MADE, device=device)
    return ids.to(_MADE)[:, None, None].expand(-1, *sizes, -1)


def _read(made: Tensor | None) -> tuple[Tensor | None, int | None, bool]:
    """Segments (B, S), the layer's window, and whether keys are forgotten, from what `head_plan_mask` returned."""
    if made is None:
        return None, None, False
    if made.ndim != 4 or made.shape[1] > 2 or made.dtype != _MADE:
        raise ValueError(f"attention_mask must be (batch, length) with 0 for padding, got shape {tuple(made.shape)}")
    return (made[:, 0, 0].long() if made.shape[3] else None), (made.shape[2] - 1 or None), made.shape[1] == 2


@contextmanager
def observed_by(observe: Observer) -> Iterator[None]:
    """Pass every enclosed call to `observe`."""
    _observers.append(observe)
    try:
        yield
    finally:
        _observers.remove(observe)


def _layer(module: nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ValueError(f"{type(module).__name__} must have a layer_idx, which head plans need, got none")
    return layer


def _dropout_field(config: Any) -> str:
    """What the model's configuration calls the dropout of attention probabilities: GPT-2's is attn_pdrop."""
    names = (name for name in ("attn_pdrop", "attention_probs_dropout_prob", "attn_dropout") if hasattr(config, name))
    return next(names, "attention_dropout")


def _plan_of(module: nn.Module, n_heads: int, sliding_window: int | None) -> HeadPlan:
    """The layer's plan, cut to the model's own window where that is shorter."""
    plans = getattr(module.config, "head_plans", None)
    layer = _layer(module)
    if plans and layer >= len(plans):
        raise ValueError(f"head_plans of the configuration must have a plan for every layer, got {len(plans)}")
    plan = HeadPlan.from_dict(plans[layer]) if plans else HeadPlan.full(n_heads)
    return plan if sliding_window is None else plan.within(sliding_window)


def _naming_the_attention(to_dict: Callable[[PreTrainedConfig], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The values of a configuration with the attention that its `head_plans` need, which transformers leaves out.

    It reads the name, though: `from_pretrained` restores the plans, and where longshort was not imported it raises.
    """

    @wraps(to_dict)
    def wrapper(self: PreTrainedConfig) -> dict[str, Any]:
        values = to_dict(self)
        if _plans_in_use(self):
            values["attn_implementation"] = _named_for(self)
        return values

    return wrapper


def _with_planned_layers(init: Callable[..., None]) -> Callable[..., None]:
    """`DynamicCache` with layers that keep as much as each head of a model with `head_plans` sees."""

    @wraps(init)
    def wrapper(self: DynamicCache, ddp_cache_data: Any = None, config: Any = None, *args: Any, **options: Any) -> None:
        init(self, ddp_cache_data, config, *args, **options)
        if ddp_cache_data is None and config is not None:
            in_use = _PlansInUse(config.get_text_config())
            plans = [HeadPlan.from_dict(plan) for plan in in_use()]
            self.layers[: len(plans)] = planned_layers(self.layers[: len(plans)], plans, in_use)

    return wrapper


class _PlansInUse:
    """The plans that a configuration has now; a copy of a cache asks the same configuration."""

    def __init__(self, text: PreTrainedConfig) -> None:
        self.text = text

    def __call__(self) -> list[dict[str, Any]]:
        return _plans_of_text(self.text)

    def __deepcopy__(self, memo: dict[int, Any]) -> _PlansInUse:
        return self


def _plans_in_use(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """A plan for each layer; none where the model runs another attention."""
    return _plans_of_text(config.get_text_config())


def _plans_of_text(own: PreTrainedConfig) -> list[dict[str, Any]]:
    return getattr(own, "head_plans", None) or [] if own._attn_implementation == ATTENTION_NAME else []


def _named_for(config: PreTrainedConfig) -> str | dict[str, str]:
    """The attention's name, for the text alone in a configuration that has other parts."""
    own = config.get_text_config()
    text = [name for name in config.sub_configs if getattr(config, name) is own]
    return dict.fromkeys(text, ATTENTION_NAME) if text else ATTENTION_NAME


# Changed for every model, though only a configuration with `head_plans` in use gets anything else than before: nothing
# of ours is called when such a model is loaded, saved or makes its cache. `from_pretrained` builds transformers' own
# configuration and model, which save themselves by `to_dict`, and both `generate` and a forward pass make the cache by
# `DynamicCache(config=...)`, whose kinds of layer come from `layer_types`, by which models also choose their masks. An
# attention function, the only thing transformers lets one register, first runs when that cache is already filled.
PreTrainedConfig.to_dict = _naming_the_attention(PreTrainedConfig.to_dict)  # type: ignore[method-assign]
DynamicCache.__init__ = _with_planned_layers(DynamicCache.__init__)  # type: ignore[method-assign]
AttentionInterface.register(ATTENTION_NAME, head_plan_attention)
AttentionMaskInterface.register(ATTENTION_NAME, head_plan_mask)
