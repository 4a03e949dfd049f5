"""Autocast, on devices that have it and on the meta device, which does not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def has_autocast(x: Tensor) -> bool:
    """The meta device has no autocast. (torch.amp.is_autocast_available breaks a compiled graph before torch 2.13.)"""
    return x.device.type != "meta"


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Computes in the dtype of its tensors, wherever x is."""
    return torch.autocast(x.device.type, enabled=False) if has_autocast(x) else nullcontext()
