"""A trained model in sequences longer than those of its training."""

from __future__ import annotations

from dataclasses import replace

import torch

from longshort.model.gpt import GPT
from longshort.nn import RopeScaling
from longshort.numeric import check_count


def lengthened(model: GPT, context: int) -> GPT:
    """The model for sequences of up to `context` tokens, more than in its training, with the same weights in memory.

    The rotary angles of global heads are slowed as YaRN has it (arXiv 2309.00071), without training. Windows, and heads
    that are not rotated, meet no distance that is new to them, and stay as they are.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("modern-10m", n_layers=1))
    >>> longer = lengthened(model, 16_384)
    >>> longer.config.context, longer.config.rope_scaling.factor
    (16384, 8.0)
    """
    if not isinstance(model, GPT):
        raise ValueError(f"model must be a GPT, got {type(model).__name__}")
    check_count("context", context)
    config = model.config
    if context <= config.context:
        raise ValueError(f"a model of context {config.context:,} must be lengthened to more tokens, got {context:,}")
    if config.positions == "learned":
        raise ValueError(f"positions must not be learned to go past the {config.context:,} of the table, got learned")
    if config.rope_scaling is not None:
        raise ValueError(
            f"rope_scaling must be None in a model to be lengthened, got {config.rope_scaling.kind!r}: its rotary "
            "angles are slowed already"
        )
    scaling = None
    if config.positions == "rotary":
        times = context / config.context
        scaling = RopeScaling(kind="yarn", factor=times, original_context=config.context, heads="global")
    with torch.device("meta"):
        longer = GPT(replace(config, context=context, rope_scaling=scaling), causal=model.causal)
    longer.load_state_dict(model.state_dict(), assign=True)
    longer.gradient_checkpointing = model.gradient_checkpointing
    return longer.train(model.training)
