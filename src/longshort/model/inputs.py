"""Checks of what a model is given, and of the integers among it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longshort.model.config import GPTConfig
from longshort.nn import KVCache, LSAttention
from longshort.ops import transforms

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

IGNORED_TARGET = -100
"""Targets of this value are left out of the loss and its mean."""


def check_inputs(
    config: GPTConfig,
    layers: list[LSAttention],
    group: ProcessGroup | None,
    tokens: Tensor | None,
    targets: Tensor | None,
    embeddings: Tensor | None,
    segments: Tensor | None,
    positions: Tensor | None,
    cache: KVCache | None,
) -> None:
    """Raise unless `GPT.forward` can take these, in a model of these layers whose sequences `group` shares."""
    if (tokens is None) == (embeddings is None):
        raise ValueError(f"input must be tokens or embeddings, got {'neither' if tokens is None else 'both'}")
    if tokens is not None:
        check_tensor("tokens", tokens)
        if tokens.ndim != 2:
            raise ValueError(f"tokens must have shape (batch, length), got {tuple(tokens.shape)}")
        shape = tokens.shape
        check_integers("tokens", tokens, shape)
        check_range("tokens", tokens, config.vocab_size)
    elif embeddings is not None:
        check_tensor("embeddings", embeddings)
        if embeddings.ndim != 3 or embeddings.shape[2] != config.width or not embeddings.is_floating_point():
            raise ValueError(
                f"embeddings must be floating-point of shape (batch, length, {config.width}), "
                f"got {embeddings.dtype} of shape {tuple(embeddings.shape)}"
            )
        shape = embeddings.shape[:2]
    if targets is not None:
        check_tensor("targets", targets)
        if targets.dtype != torch.int64:
            raise ValueError(f"targets must be int64, got {targets.dtype}")
        check_integers("targets", targets, shape)
        check_range("targets", targets, config.vocab_size, ignored=IGNORED_TARGET)
    if segments is not None:
        check_integers("segments", segments, shape)
    if positions is not None:
        check_tensor("positions", positions)
        check_integers("positions", positions, shape[1:] if positions.ndim == 1 else shape)
    if cache is not None:
        _check_cache(layers, group, shape, cache)
    if config.positions == "learned":
        _check_learned_positions(config.context, group, shape, positions, cache)


def _check_cache(layers: list[LSAttention], group: ProcessGroup | None, shape: torch.Size, cache: KVCache) -> None:
    if not isinstance(cache, KVCache):
        raise ValueError(f"cache must be an LSCache, got {type(cache).__name__}")
    fits = len(cache.layers) == len(layers) and all(map(LSAttention.fits, layers, cache.layers))
    if not fits:
        raise ValueError("cache must have the plans, KV heads, head dim and smoothing of this model: see new_cache")
    if group is not None and cache.length:
        raise ValueError(f"cache must be empty while sequences are shared (share_sequences), got {cache.length} tokens")
    cache.check(shape[0], shape[1] * (1 if group is None else group.size()))


def _check_learned_positions(
    context: int, group: ProcessGroup | None, shape: torch.Size, positions: Tensor | None, cache: KVCache | None
) -> None:
    held = 0 if cache is None else cache.known_length
    if group is not None:  # the positions on other ranks
        held = shape[1] * (group.size() - 1)
    if positions is None and cache is not None and cache.next_positions(0).ndim == 2:
        positions = cache.next_positions(shape[1])
    if positions is not None:
        check_range("positions", positions, context)
    elif held is not None and held + shape[1] > context:
        raise ValueError(
            f"sequences must be no longer than the {context} learned positions, got length {held + shape[1]}"
        )


def check_integers(name: str, x: Tensor, shape: torch.Size) -> None:
    """Raise unless x has this shape and is of integers."""
    check_tensor(name, x)
    if x.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(x.shape)}")
    if x.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} must be int64 or int32, got {x.dtype}")


def check_tensor(name: str, x: Tensor) -> None:
    """Raise unless x is a tensor."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")


def check_range(name: str, x: Tensor, limit: int, *, ignored: int | None = None) -> None:
    """Raise if a number is not from 0 to limit - 1, where that costs no synchronisation and the numbers can be read.

    Elsewhere the embedding's own device-side check remains.
    """
    real = type(x) is Tensor and x.device.type == "cpu" and x.numel()  # fake tensors are a class of their own
    if not real or torch.compiler.is_compiling() or transforms.active():
        return
    if ignored is not None:
        x = x.where(x != ignored, 0)
    smallest, largest = x.min().item(), x.max().item()
    if smallest < 0 or largest >= limit:
        raise ValueError(f"{name} must be from 0 to {limit - 1}, got values from {smallest} to {largest}")
