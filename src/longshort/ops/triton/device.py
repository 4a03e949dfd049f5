"""What launches need to know of the device and keep on it: multiprocessors, tables, the precision of products."""

from __future__ import annotations

from functools import cache, lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=64)
def capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache  # a captured CUDA graph reads the table for as long as it lives
def table(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once, so that a call copies nothing to the device."""
    return torch.tensor(numbers, dtype=dtype, device=device)


def precision_of(x: Tensor) -> str:
    """Precision of matrix products of such tensors, as the kernels name it."""
    return "tf32" if x.dtype == torch.float32 and x.device.type == "cuda" and _tf32_allowed() else "ieee"


def _tf32_allowed() -> bool:
    try:
        return torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # it was set through the newer name, which forbids reading the older one
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def width_of(head_dim: int) -> int:
    """Width of a tile, a power of two."""
    return max(16, power_of_two(head_dim))


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below the number.

    >>> power_of_two(5), power_of_two(8)
    (8, 8)
    """
    return 1 << (number - 1).bit_length()
