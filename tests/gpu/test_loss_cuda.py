"""The chunked loss on a GPU, where one kernel takes the place of PyTorch's operations."""

import pytest
import torch
from torch.nn import functional as F

from longshort.losses import linear_cross_entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_no_worse_than_those_of_the_full_logits(dtype):
    hidden = torch.randn(3000, 192, device="cuda", dtype=dtype, requires_grad=True)
    weight = (0.3 * torch.randn(10000, 192, device="cuda")).to(dtype).requires_grad_()
    targets = torch.randint(10000, (3000,), device="cuda")
    targets[::7] = -100
    inputs = (hidden, weight)
    exact = F.cross_entropy(hidden.double() @ weight.double().T, targets)
    rounded = F.cross_entropy((hidden @ weight.T).float(), targets)
    loss = linear_cross_entropy(hidden, weight, targets, chunk=1024)
    assert (loss - exact).abs() <= 2 * (rounded - exact).abs() + 1e-5
    wanted, usual, got = (torch.autograd.grad(x, inputs) for x in (exact, rounded, loss))
    for a, b, c in zip(got, usual, wanted, strict=True):
        assert (a.double() - c.double()).norm() <= 2 * (b.double() - c.double()).norm() + 1e-6 * c.double().norm()


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.9])
def test_damped_scores_take_the_same_kernel(exponent):
    hidden = torch.randn(500, 64, device="cuda", requires_grad=True)
    weight = torch.randn(3000, 64, device="cuda", requires_grad=True)
    targets = torch.randint(3000, (500,), device="cuda")
    targets[::7] = -100
    exact = linear_cross_entropy(hidden.double(), weight.double(), targets, exponent=exponent, z_weight=0.1)
    loss = linear_cross_entropy(hidden, weight, targets, exponent=exponent, z_weight=0.1, chunk=128)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=1e-5)
    for a, b in zip(*(torch.autograd.grad(x, (hidden, weight)) for x in (loss, exact)), strict=True):
        assert (a - b).norm() <= 1e-3 * b.norm() + 1e-9


def test_loss_of_many_logits_reaches_every_row():
    # 2^31 logits and more in one chunk: offsets must have 64 bits.
    hidden = torch.randn(1 << 18, 16, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(10000, 16, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(10000, (1 << 18,), device="cuda")
    whole = linear_cross_entropy(hidden, weight, targets, chunk=1 << 18)
    torch.testing.assert_close(whole, linear_cross_entropy(hidden, weight, targets, chunk=1 << 12))
