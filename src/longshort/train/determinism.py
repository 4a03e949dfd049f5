"""Runs that are equal to the bit on a GPU, where sums are otherwise taken in the order in which threads arrive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def equal_bits() -> Iterator[None]:
    """Within the block PyTorch takes the operations whose results do not vary, and raises where it has none.

    Our own kernels have no atomic additions: their bits never vary.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when its first product comes
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
