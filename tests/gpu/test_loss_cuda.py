"""The chunked loss on a GPU, where one kernel takes the place of PyTorch's operations."""

import pytest
import torch
from torch.nn import functional as F

from longshort.losses import linear_cross_entropy
from longshort.losses.head import head_scores


@pytest.mark.parametrize("n_classes", [10000, 10001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_no_worse_than_those_of_the_full_logits(dtype, n_classes):
    hidden = torch.randn(3000, 192, device="cuda", dtype=dtype, requires_grad=True)
    weight = (0.3 * torch.randn(n_classes, 192, device="cuda")).to(dtype).requires_grad_()
    targets = torch.randint(n_classes, (3000,), device="cuda")
    targets[::7] = -100
    inputs = (hidden, weight)
    exact = F.cross_entropy(hidden.double() @ weight.double().T, targets)
    rounded = F.cross_entropy((hidden @ weight.T).float(), targets)
    loss = linear_cross_entropy(hidden, weight, targets, chunk=1024)
    assert (loss - exact).abs() <= 2 * (rounded - exact).abs() + 1e-5
    wanted, usual, got = (torch.autograd.grad(x, inputs) for x in (exact, rounded, loss))
    for a, b, c in zip(got, usual, wanted, strict=True):
        assert (a.double() - c.double()).norm() <= 2 * (b.double() - c.double()).norm() + 1e-6 * c.double().norm()


@pytest.mark.parametrize("n_classes", [3000, 257])
@pytest.mark.parametrize("shape", [{"exponent": e} for e in (0.0, 0.5, 0.9, 1.0)] + [{"softcap": 9.0}], ids=str)
def test_damped_and_capped_scores_take_the_same_kernel(shape, n_classes):
    hidden = torch.randn(500, 64, device="cuda", requires_grad=True)
    weight = torch.randn(n_classes, 64, device="cuda", requires_grad=True)
    targets = torch.randint(n_classes, (500,), device="cuda")
    targets[::7] = -100
    exact = linear_cross_entropy(hidden.double(), weight.double(), targets, z_weight=0.1, **shape)
    loss = linear_cross_entropy(hidden, weight, targets, z_weight=0.1, chunk=128, **shape)
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


@pytest.mark.parametrize("n_classes", [10000, 10001])
def test_gradient_of_the_head_is_summed_in_single_precision(n_classes):
    hidden = torch.randn(4096, 192, device="cuda", requires_grad=True)
    weight = (0.1 * torch.randn(n_classes, 192, device="cuda")).requires_grad_()
    targets = torch.randint(n_classes, (4096,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        losses = [linear_cross_entropy(hidden, weight, targets, chunk=chunk) for chunk in (None, 128)]
    whole, parts = (torch.autograd.grad(loss, weight)[0] for loss in losses)
    assert whole.shape == weight.shape and whole.dtype == torch.float32
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    # Rounding each part to bf16 makes a difference of 1e-3.
    assert (whole - parts).norm() <= 3e-4 * whole.norm()


def test_padding_brings_no_nan_from_an_ignored_row():
    hidden = torch.randn(300, 64, device="cuda", dtype=torch.bfloat16)
    hidden[7] = torch.nan
    weight = torch.randn(257, 64, device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(257, (300,), device="cuda")
    targets[7] = -100
    loss = linear_cross_entropy(hidden.requires_grad_(), weight, targets)
    (grad,) = torch.autograd.grad(loss, hidden)
    assert loss.isfinite() and grad.isfinite().all() and grad[7].eq(0).all()


@pytest.mark.usefixtures("memory_given_back")
@pytest.mark.parametrize("n_classes", [50304, 50257])
def test_default_chunk_holds_at_most_a_gibibyte_of_logits(n_classes):
    hidden = torch.randn(32768, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(n_classes, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(n_classes, (32768,), device="cuda")
    linear_cross_entropy(hidden, weight, targets).backward()
    hidden.grad = weight.grad = None
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    linear_cross_entropy(hidden, weight, targets).backward()
    peak = torch.cuda.max_memory_allocated() - held
    gradients = 4 * weight.numel() + 2 * weight.numel() + 2 * hidden.numel()
    assert peak <= 2**30 + gradients + 2 * weight.numel() + 64 * 2**20


def test_compiled_loss_of_a_padded_head_equals_eager():
    hidden = torch.randn(700, 64, device="cuda", requires_grad=True)
    weight = torch.randn(257, 64, device="cuda", requires_grad=True)
    targets = torch.randint(257, (700,), device="cuda")

    def loss_of(hidden, weight):
        with torch.autocast("cuda", torch.bfloat16):
            return linear_cross_entropy(hidden, weight, targets)

    losses = [function(hidden, weight) for function in (loss_of, torch.compile(loss_of, fullgraph=True))]
    torch.testing.assert_close(*losses)
    eager, compiled = (torch.autograd.grad(loss, (hidden, weight)) for loss in losses)
    torch.testing.assert_close(compiled, eager)


@pytest.mark.parametrize("n_tokens", [7, 3000])
def test_scores_of_an_odd_vocabulary_are_no_worse_than_the_plain_product(n_tokens):
    hidden = torch.randn(1, n_tokens, 192, device="cuda", requires_grad=True)
    weight = torch.randn(257, 192, device="cuda", requires_grad=True)
    exact = F.linear(hidden.double(), weight.double())
    with torch.autocast("cuda", torch.bfloat16):
        scores, plain = head_scores(hidden, weight), F.linear(hidden, weight)
    assert scores.shape == plain.shape and scores.dtype == plain.dtype == torch.bfloat16
    results = [(x, *torch.autograd.grad(x.sum(), (hidden, weight))) for x in (scores, plain, exact)]
    for got, usual, wanted in zip(*results, strict=True):
        assert (got.double() - wanted).norm() <= 1.5 * (usual.double() - wanted).norm() + 1e-6 * wanted.norm()
