"""Reproducible bits are asked for within a block, and not after it."""

import os

import pytest
import torch
import torch.utils.deterministic

from longshort.train.machine.determinism import equal_bits


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def test_operations_are_deterministic_within_the_block_and_all_is_as_before_when_it_ends_or_fails(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.raises(KeyboardInterrupt), equal_bits():
            assert settings() == (True, False, False)
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # without it cuBLAS raises
            raise KeyboardInterrupt
        assert settings() == (True, True, True)
    finally:
        torch.use_deterministic_algorithms(False)
