"""Head plans that `longshort.hf.use_head_plan` or `longshort convert` saved with a model of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshort.heads import HeadPlan

ATTENTION_NAME = "longshort"
"""The attention that a config.json names where its plans are in use; see `longshort.hf.head_plans`."""


def saved_plans(config: Mapping[str, Any], *, n_layers: int, n_heads: int, named: str) -> list[HeadPlan] | None:
    """The plan of each layer, from the values of config.json; None where it has none, or they are switched off."""
    saved = config.get("head_plans")
    if not saved or config.get("attn_implementation", config.get("_attn_implementation")) != ATTENTION_NAME:
        return None
    try:
        plans = [HeadPlan.from_dict(plan) for plan in saved]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{named}: head_plans must be a plan per layer, got: {error}") from None
    if len(plans) != n_layers or any(plan.n_heads != n_heads for plan in plans):
        sizes = f"{len(plans)} of {', '.join(sorted({str(plan.n_heads) for plan in plans}))} heads"
        raise ValueError(f"{named}: head_plans must be {n_layers} plans of {n_heads} heads, got {sizes}")
    return plans
