"""The precision that a model runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def in_bf16(precision: str, device: torch.device) -> bool:
    """Whether a run computes in bf16; auto does on CUDA."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """bf16 autocast, or nothing for fp32; auto is bf16 on CUDA and fp32 elsewhere."""
    if in_bf16(precision, device):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def matmul_precision(setting: str, precision: str, device: torch.device) -> str:
    """The precision of fp32 matrix products, as PyTorch names it: `run.matmul` with auto decided; a CPU has one only.

    >>> matmul_precision("auto", "auto", torch.device("cuda")), matmul_precision("auto", "fp32", torch.device("cuda"))
    ('high', 'highest')
    """
    if device.type != "cuda":
        return "highest"
    if setting == "auto":
        return "high" if in_bf16(precision, device) else "highest"
    return setting


@contextmanager
def matmuls(precision: str) -> Iterator[None]:
    """Within the block, fp32 matrix products have this precision."""
    before = _set_before()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _set_before() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set through the newer name, which forbids reading the older one
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"
