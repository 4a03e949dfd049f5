"""What GPU tests share: a CUDA context in each thread that computes, and memory given back to the other workers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _context_in_autograd_thread() -> None:
    """A first matmul in the thread of the backward pass finds no current context there and warns, once a process."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Attempting to run cuBLAS, but there was no current CUDA context", UserWarning
        )
        x = torch.ones(16, 16, device="cuda", requires_grad=True)
        (x @ x).sum().backward()


@pytest.fixture
def memory_given_back() -> Iterator[None]:
    """Several processes share the GPU: what the allocator of one keeps, the others lack."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()
