"""Runs that are equal to the bit on a GPU, where sums are otherwise taken in the order in which threads arrive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic


@contextmanager
def equal_bits() -> Iterator[None]:
    """Within the block PyTorch takes the operations whose results do not vary, and raises where it has none.

    Our own kernels have no atomic additions: their bits never vary. Memory is not filled before it is written: no
    operation here reads what none has written.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when its first product comes
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic  # its setting is a property of the module, which types do not show
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
