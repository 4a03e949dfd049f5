"""The head's matrix with as many rows as a GPU multiplies fast, whatever the vocabulary.

Rows of logits that do not start at multiples of 16 bytes keep a GPU from its fast matrix products: on an H200 those of
a vocabulary of 50,257 took five to seven times as long as those of 50,304 (benchmarks/results/loss-h200.txt). The
parameter keeps its size; a copy of it is padded where one is worth making.

Shapes: N tokens, d features, V classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.ops.autocast import has_autocast

TILE = 128
"""Sizes that are multiples of this fill the tiles of a matrix product."""
_ALIGNED = 16
"""What Triton knows to be a multiple of this it reads in vectors; matrix products ask for 8, which are 16 bytes."""
_MANY_TOKENS = 1024
"""With fewer tokens, copying the head takes longer than multiplying by it."""


def product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype in which hidden @ weight.T is multiplied: autocast's, or that of both."""
    autocast = has_autocast(hidden) and torch.is_autocast_enabled(hidden.device.type)
    if autocast and torch.float64 not in (hidden.dtype, weight.dtype):
        return torch.get_autocast_dtype(hidden.device.type)
    if hidden.dtype != weight.dtype:
        raise ValueError(f"weight must have the dtype of hidden, {hidden.dtype}, got {weight.dtype}")
    return hidden.dtype


def padded_head(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """weight (V, d) in `dtype`; if V is not a multiple of 16, with rows of zeros up to a multiple of 128."""
    n_classes = weight.shape[0]
    if n_classes % _ALIGNED == 0:
        return weight.to(dtype)
    head = weight.new_zeros((-(-n_classes // TILE) * TILE, weight.shape[1]), dtype=dtype)
    head[:n_classes] = weight
    return head


def head_scores(hidden: Tensor, weight: Tensor) -> Tensor:
    """`F.linear(hidden, weight)` of (..., d) and (V, d), by way of a padded copy of the weight where that is faster."""
    if not _padding_pays(hidden, weight):
        return F.linear(hidden, weight)
    return F.linear(hidden, padded_head(weight, product_dtype(hidden, weight)))[..., : weight.shape[0]]


def _padding_pays(hidden: Tensor, weight: Tensor) -> bool:
    return hidden.is_cuda and weight.shape[0] % _ALIGNED != 0 and hidden.shape[:-1].numel() >= _MANY_TOKENS
