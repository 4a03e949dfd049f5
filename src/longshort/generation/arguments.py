"""What `generate` and the sampler of rollouts are called with: each wrong value is an error that names the argument."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from longshort.generation.soft import SoftThinking, ThinkingRecord
from longshort.model import GPT
from longshort.numeric import check_count, is_integral

Prompt = Tensor | Sequence[Sequence[int] | Tensor]


def check_model(model: object) -> None:
    """Raise unless it is a language model of ours."""
    if not callable(getattr(model, "new_cache", None)):  # a compiled GPT is of another type
        raise ValueError(f"model must be a GPT, got {type(model).__name__}")


def check_context(model: GPT, context: int) -> None:
    """Raise unless the model can see so many tokens."""
    check_count("context", context)
    config = model.config
    if config.positions == "learned" and context > config.context:
        raise ValueError(f"context must be at most the {config.context} learned positions, got {context}")


def check_lengths(model: GPT, rows: Sequence[Tensor], max_new_tokens: int) -> None:
    """Raise unless the model gives each of these prompts what it gives it alone."""
    chunk, lengths = model.config.attention_chunk, [len(row) for row in rows]
    if chunk is not None and min(lengths) < max(lengths) and max(lengths) + max_new_tokens > chunk:
        raise ValueError(
            f"prompt must be sequences of one length for a model with attention_chunk={chunk}, got {min(lengths)} to "
            f"{max(lengths)} tokens and {max_new_tokens} new ones: padding on the left would move its chunks; give "
            "each length in a call of its own"
        )


def check_seed(seed: object) -> None:
    """Raise unless it is a seed, or None."""
    if seed is not None and not (is_integral(seed) and -(2**63) <= seed < 2**63):
        raise ValueError(f"seed must be None or an integer of 64 bits, from -2^63 to 2^63 - 1, got {seed!r}")


def stop_tokens(stop: int | Collection[int] | None, vocabulary: int) -> list[int]:
    """The tokens that end a sequence, of those that can be drawn."""
    if isinstance(stop, Tensor | np.ndarray):
        stop = stop.flatten().tolist()
    tokens = [] if stop is None else list(stop) if isinstance(stop, Collection) else [stop]
    if isinstance(stop, str) or not all(map(is_integral, tokens)):
        raise ValueError(f"stop must be a token or tokens, as integers (texts are for stop_strings), got {stop!r}")
    if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
        raise ValueError(f"stop must be tokens from 0 to {vocabulary - 1}, which can be drawn, got {wrong[0]}")
    return tokens


def check_thinking(
    thinking: SoftThinking | None, record: ThinkingRecord | None, vocabulary: int, embedding: nn.Module
) -> None:
    """Raise where a model of this vocabulary and embedding cannot think so."""
    if thinking is None:
        if record is not None:
            raise ValueError("record must be None without thinking, got a ThinkingRecord")
        return
    if not isinstance(thinking, SoftThinking):
        raise ValueError(f"thinking must be None or a SoftThinking, got {thinking!r}")
    if thinking.end >= vocabulary:
        raise ValueError(f"end must be a token from 0 to {vocabulary - 1}, got {thinking.end}")
    if record is not None and len(record):
        raise ValueError(f"record must be empty, got one of {len(record)} steps")
    check_table(embedding)


_SHOWN_BY_THE_WEIGHT = ("parametrizations", "original_module", "modules_to_save", "token_adapter")
"""Parts of a layer that its `weight` tells of: torch's parametrizations, and what PEFT trains in a layer's place."""


def adds_to_its_weight(layer: nn.Module) -> bool:
    """Does the layer compute more than its `weight` says, as one with an adapter does? Compiled ones do not."""
    parts = dict(layer.named_children())
    if list(parts) == ["_orig_mod"]:
        return adds_to_its_weight(parts["_orig_mod"])
    return any(name not in _SHOWN_BY_THE_WEIGHT for name in parts)


def check_table(embedding: nn.Module) -> None:
    """Raise unless an embedding is its table alone, of which mixtures are made: an adapter would not enter them."""
    if adds_to_its_weight(embedding):
        raise ValueError(
            f"model must have an embedding that is its table alone with soft thinking, got {type(embedding).__name__}"
        )


def prompt_rows(prompt: Prompt, vocab_size: int) -> list[Tensor]:
    """The sequences of a prompt, checked."""
    if isinstance(prompt, Tensor):
        if prompt.ndim != 2 or not prompt.numel():
            raise ValueError(f"prompt must have shape (batch, at least one token), got {tuple(prompt.shape)}")
        rows = list(prompt)
    elif not isinstance(prompt, Collection):  # what can be read only once would be empty when read again
        raise ValueError(f"prompt must be a tensor or a sequence of sequences of tokens, got {type(prompt).__name__}")
    elif isinstance(prompt, str) or any(isinstance(row, str) for row in prompt):
        raise ValueError(f"prompt must be tokens, got text, which a tokenizer encodes: {prompt!r}")
    elif all(isinstance(row, list) for row in prompt):  # in one piece: a rollout has thousands of prompts
        tokens = _as_tensor(list(chain.from_iterable(prompt)))
        rows = list(tokens.split([len(row) for row in prompt]))
    else:
        rows = [row if isinstance(row, Tensor) else _as_tensor(row) for row in prompt]
    if not rows or any(row.ndim != 1 or not len(row) for row in rows):
        raise ValueError(f"prompt must be rows of at least one token each, got {[tuple(row.shape) for row in rows]}")
    for dtype in dict.fromkeys(row.dtype for row in rows):
        if dtype.is_floating_point or dtype == torch.bool:
            raise ValueError(f"prompt must be integers, got {dtype}")
    least, most = (int(bound) for bound in torch.cat(rows).long().aminmax())
    if least < 0 or most >= vocab_size:
        raise ValueError(f"prompt must be from 0 to {vocab_size - 1}, got values from {least} to {most}")
    return rows


def _as_tensor(tokens: object) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(tokens))
    except (TypeError, ValueError):  # nested lists, or what is no number
        raise ValueError(f"prompt must be rows of integers, got {tokens!r:.200}") from None
