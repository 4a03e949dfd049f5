"""A trained model in sequences longer than those of its training."""

from __future__ import annotations

from dataclasses import replace

import torch

from longshort.model.config import GPTConfig
from longshort.model.gpt import GPT
from longshort.nn import RopeScaling
from longshort.numeric import check_count


def lengthened(model: GPT, context: int) -> GPT:
    """The model for sequences of up to `context` tokens, more than in its training, with the same weights in memory.

    The rotary angles of global heads are slowed as YaRN has it (arXiv 2309.00071), without training, also in shorter
    sequences. Heads that are not rotated stay as they are, and so do local heads, unless some of them see past the
    model's context.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("modern-10m", n_layers=1))
    >>> longer = lengthened(model, 16_384)
    >>> longer.config.context, longer.config.rope_scaling.factor
    (16384, 8.0)
    """
    if not isinstance(model, GPT):
        raise ValueError(f"model must be a GPT that is not compiled, got {type(model).__name__}")
    config = model.config
    check_count("context", context)
    if context <= config.context:
        raise ValueError(f"context must be above the model's {config.context}, got {context}")
    if config.rope_scaling is not None:
        raise ValueError(
            f"rope_scaling must be None in a model to be lengthened, got {config.rope_scaling.kind!r}: its rotary "
            "angles are slowed already"
        )
    if not meets_new_angles(config):
        none = " and none of them" if config.positions == "rotary" else ""
        runs = "" if config.positions == "learned" else "; it takes longer sequences as it is"
        raise ValueError(
            "a model to be lengthened must have rotated heads that see past its context, got positions="
            f"{config.positions!r}{none}: no angle can be slowed{runs}"
        )
    scaling = RopeScaling(
        kind="yarn",
        factor=context / config.context,
        original_context=config.context,
        heads="all" if _local_and_far(config) else "global",
    )
    with torch.device("meta"):
        longer = GPT(replace(config, context=context, rope_scaling=scaling), causal=model.causal)
    longer.load_state_dict(model.state_dict(), assign=True)
    for mine, theirs in zip(longer.parameters(), model.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    for part, other in zip(longer.modules(), model.modules(), strict=True):
        part.training = other.training
    longer.gradient_checkpointing = model.gradient_checkpointing
    if model.group is not None:
        longer.share_sequences(model.group)
    return longer


def meets_new_angles(config: GPTConfig) -> bool:
    """Whether rotated heads would see keys from farther back in sequences longer than the context."""
    of_global = any(layer.plan.n_global and layer.global_share for layer in config.layer_reaches)
    return config.positions == "rotary" and (of_global or _local_and_far(config))


def _local_and_far(config: GPTConfig) -> bool:
    """Whether rotated heads with a window see past the context: it is wider, or they see the first keys too."""
    return any(
        layer.local_share and window is not None and (window > config.context or first)
        for layer in config.layer_reaches
        for window, first in zip(layer.plan.windows, layer.plan.first_keys, strict=True)
    )
