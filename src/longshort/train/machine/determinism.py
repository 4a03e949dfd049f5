"""Bit-for-bit reproducible runs on a GPU, where the order of summation otherwise depends on thread timing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic


@contextmanager
def equal_bits() -> Iterator[None]:
    """Within the block, PyTorch uses deterministic operations only, and raises where it has none.

    Our own kernels have no atomic additions, so they are always deterministic. Filling uninitialised memory is switched
    off, since no operation here reads memory that was not written.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at its first matrix product
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # the setting is a module property, unknown to the type stubs
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
