"""The precision of a run, and of the program around it."""

import pytest
import torch

from longshort.train.machine.precision import in_bf16, matmul_precision, matmuls

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("precision", "device", "half"),
    [("auto", CPU, False), ("auto", GPU, True), ("bf16", CPU, True), ("fp32", GPU, False)],
)
def test_auto_is_bf16_on_a_gpu_alone(precision, device, half):
    assert in_bf16(precision, device) is half


@pytest.mark.parametrize(
    ("setting", "precision", "device", "expected"),
    [("high", "bf16", CPU, "highest"), ("high", "fp32", GPU, "high"), ("highest", "bf16", GPU, "highest")],
)
def test_the_precision_of_products_is_what_is_asked_for_on_a_gpu(setting, precision, device, expected):
    assert matmul_precision(setting, precision, device) == expected


def test_products_have_the_precision_of_before_when_the_block_ends_or_fails():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyboardInterrupt), matmuls("high"):
        assert torch.get_float32_matmul_precision() == "high" != before
        raise KeyboardInterrupt
    assert torch.get_float32_matmul_precision() == before
