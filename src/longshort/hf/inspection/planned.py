"""A model with other plans, and its loss on given sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.heads import HeadPlan
from longshort.hf.head_plans import use_head_plan
from longshort.hf.inspection.measure import Done
from longshort.hf.modeling import LongShortForCausalLM
from longshort.model import GPT
from longshort.reach import LayerReach


def with_plans(model: PreTrainedModel, plans: Sequence[HeadPlan]) -> PreTrainedModel:
    """The model with a plan for each layer: itself, or, of our own, another one with the same weights."""
    if not isinstance(model, LongShortForCausalLM):
        use_head_plan(model, plans)
        return model
    gpt, config = model.model, model.config
    layers, bound = gpt.config.layer_reaches, bound_layers(model)
    for number, (layer, plan) in enumerate(zip(layers, plans, strict=True)):
        changed = [w is None for w in layer.plan.windows] != [w is None for w in plan.windows]
        if changed and number in bound:
            raise ValueError(
                f"global heads must stay global in layer {number}, whose local heads have other positions, got "
                f"{plan.windows} instead of {layer.plan.windows}"
            )
    reach = tuple(replace(layer, plan=plan) for layer, plan in zip(layers, plans, strict=True))
    none = dict.fromkeys(("n_global", "window", "plan", "plans"))
    with torch.device("meta"):
        other = GPT(replace(gpt.config, **none, reach=reach))
    other.load_state_dict(gpt.state_dict(keep_vars=True), assign=True)
    tokens = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    made = LongShortForCausalLM.from_gpt(other.train(gpt.training), **tokens)
    made.generation_config = model.generation_config
    return made


def bound_layers(model: PreTrainedModel) -> frozenset[int]:
    """Layers whose global heads must stay global: as local ones they would be rotated or scaled otherwise."""
    if not isinstance(model, LongShortForCausalLM):
        return frozenset()
    config = model.model.config
    scaled = config.rope_scaling is not None and config.rope_scaling.heads == "global"
    return frozenset(
        number
        for number, layer in enumerate(config.layer_reaches)
        if scaled or layer.temperature is not None or not _placed_alike(layer, config.rope_theta)
    )


def _placed_alike(layer: LayerReach, theta: float) -> bool:
    """Whether the layer's heads are rotated alike, local or global, or not at all, as some layers of SmolLM3."""
    local = (layer.local_share, layer.local_base or theta)
    return local == (layer.global_share, layer.global_base or theta) or layer.local_share == layer.global_share == 0


@torch.no_grad()
def loss_on(model: PreTrainedModel, sequences: Tensor, done: Done = lambda sequences: None) -> float:
    """The mean loss, in nats per token, of sequences (B, T), one after the other."""
    total = 0.0
    for number, row in enumerate(sequences.to(model.device), start=1):
        total += float(model(row[None], labels=row[None], use_cache=False).loss)
        done(number)
    return total / len(sequences)
