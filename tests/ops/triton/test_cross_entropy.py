"""The fused loss kernel against the plain operations it stands for, by Triton's interpreter where there is no GPU."""

import pytest
import torch
from torch import Tensor

from longshort.losses.linear import _chunk_loss

pytest.importorskip("triton", reason="the package triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


UNDAMPED = (1.0, 0.01)


def chunk_loss(
    logits: Tensor, targets: Tensor, z_weight: float, with_gradient: bool, *damping: float
) -> tuple[Tensor, Tensor | None]:
    from longshort.ops.triton.cross_entropy import chunk_loss

    return chunk_loss(logits, targets, -100, z_weight, with_gradient, *(damping or UNDAMPED))


def case(n_classes: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    logits = scale * torch.randn(7, n_classes, device=DEVICE)
    targets = torch.randint(n_classes, (7,), device=DEVICE)
    targets[2] = -100
    return logits, targets


@pytest.mark.parametrize("n_classes", [1, 37, 4096, 9000])
@pytest.mark.parametrize("z_weight", [0.0, 0.3])
def test_loss_and_gradient_equal_those_of_the_plain_operations(n_classes: int, z_weight: float) -> None:
    logits, targets = case(n_classes)
    expected = _chunk_loss(logits.double(), targets, -100, z_weight, True, *UNDAMPED)
    loss, gradient = chunk_loss(logits.clone(), targets, z_weight, True)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("linear_below", [0.01, 2.0])
@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.9])
@pytest.mark.every(3)
def test_scores_are_damped_in_the_same_pass(exponent: float, linear_below: float, dtype: torch.dtype) -> None:
    logits, targets = case(5000)
    logits[:, :7] = torch.tensor([0.0, 0.02, -0.02, 0.005, -1e-9, 3e4, -3e4], device=DEVICE)
    logits[0, 3:] = -torch.inf
    logits = logits.to(dtype)
    expected = _chunk_loss(logits.double(), targets, -100, 0.1, True, exponent, linear_below)
    loss, gradient = chunk_loss(logits.clone(), targets, 0.1, True, exponent, linear_below)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 8e-3, "atol": 1e-6}
    torch.testing.assert_close(gradient.double(), expected[1], **tolerance)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_scores_are_capped_in_the_same_pass(softcap: float) -> None:
    logits, targets = case(5000)
    logits[:, :7] = torch.tensor([0.0, 0.02, -0.02, 50.0, -50.0, 3e4, -torch.inf], device=DEVICE)
    expected = _chunk_loss(logits.double(), targets, -100, 0.1, True, 1.0, 0.01, softcap)
    loss, gradient = chunk_loss(logits.clone(), targets, 0.1, True, 1.0, 0.01, softcap)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-4, atol=1e-6)
    assert torch.equal(chunk_loss(logits.clone(), targets, 0.1, False, 1.0, 0.01, softcap)[0], loss)


def test_rows_may_lie_apart() -> None:
    logits, targets = case(50)
    wide = torch.full((7, 80), torch.nan, device=DEVICE)
    wide[:, :50] = logits
    loss, gradient = chunk_loss(wide[:, :50], targets, 0.0, True)
    expected = _chunk_loss(logits.double(), targets, -100, 0.0, True, *UNDAMPED)
    torch.testing.assert_close(loss.double(), expected[0])
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-4, atol=1e-6)
    assert wide[:, 50:].isnan().all()


def test_logits_are_left_alone_where_no_gradient_is_wanted() -> None:
    logits, targets = case(50)
    before = logits.clone()
    loss, gradient = chunk_loss(logits, targets, 0.0, False)
    assert gradient is None and torch.equal(logits, before)
    torch.testing.assert_close(loss, _chunk_loss(before, targets, -100, 0.0, False, *UNDAMPED)[0])


def test_large_logits_neither_overflow_nor_underflow() -> None:
    logits, targets = case(100, scale=3e4)
    expected = _chunk_loss(logits.double(), targets, -100, 0.0, True, *UNDAMPED)
    loss, gradient = chunk_loss(logits.clone(), targets, 0.0, True)
    torch.testing.assert_close(loss.double(), expected[0])
    torch.testing.assert_close(gradient.double(), expected[1])


@pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_shows_in_the_loss_but_not_from_an_ignored_row(bad: float) -> None:
    logits, targets = case(50)
    logits[2] = bad
    loss, gradient = chunk_loss(logits.clone(), targets, 0.0, True)
    assert loss.isfinite() and gradient.isfinite().all()
    logits[4, 7] = bad
    assert chunk_loss(logits, targets, 0.0, True)[0].isnan()


@pytest.mark.parametrize("target", [-1, 50])
def test_a_target_that_is_no_class_makes_the_loss_nan(target: int) -> None:
    logits, targets = case(50)
    targets[5] = target
    assert chunk_loss(logits, targets, 0.0, False)[0].isnan()


def test_padding_is_left_out_and_gets_a_gradient_of_zero() -> None:
    logits, targets = case(50)
    padded = torch.cat([logits, torch.full((7, 14), 20.0, device=DEVICE)], 1)
    from longshort.ops.triton import cross_entropy

    expected = cross_entropy.chunk_loss(logits.clone(), targets, -100, 0.1, True, *UNDAMPED)
    loss, gradient = cross_entropy.chunk_loss(padded, targets, -100, 0.1, True, *UNDAMPED, n_classes=50)
    assert torch.equal(loss, expected[0])
    assert torch.equal(gradient[:, :50], expected[1]) and not gradient[:, 50:].any()
