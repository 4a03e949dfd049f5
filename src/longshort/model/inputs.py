"""Checks of the integers that a model is given."""

from __future__ import annotations

import torch
from torch import Tensor

from longshort.ops import transforms


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
    if x.device.type != "cpu" or torch.compiler.is_compiling() or transforms.active() or not x.numel():
        return
    if ignored is not None:
        x = x.where(x != ignored, 0)
    smallest, largest = x.min().item(), x.max().item()
    if smallest < 0 or largest >= limit:
        raise ValueError(f"{name} must be from 0 to {limit - 1}, got values from {smallest} to {largest}")
