"""The precision that a model runs in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 autocast, or nothing for fp32; auto is bf16 on CUDA and fp32 elsewhere."""
    if precision == "bf16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
