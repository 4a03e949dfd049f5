"""The padded copy of the head's matrix."""

import pytest
import torch
from torch.nn import functional as F

from longshort.losses import head
from longshort.losses.head import head_scores, padded_head


@pytest.mark.parametrize(("n_classes", "n_rows"), [(1, 128), (127, 128), (129, 256), (257, 384), (50257, 50304)])
def test_rows_are_padded_with_zeros_to_a_multiple_of_128(n_classes: int, n_rows: int) -> None:
    weight = torch.randn(n_classes, 3)
    padded = padded_head(weight, torch.float16)
    assert padded.shape == (n_rows, 3) and padded.dtype == torch.float16
    assert torch.equal(padded[:n_classes], weight.half()) and padded[n_classes:].eq(0).all()


@pytest.mark.parametrize("n_classes", [16, 272, 50304])
def test_aligned_rows_are_not_copied(n_classes: int) -> None:
    weight = torch.randn(n_classes, 3)
    assert padded_head(weight, torch.float32) is weight


def test_padded_scores_and_gradients_equal_those_of_the_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(2, 5, 16, requires_grad=True), torch.randn(37, 16, requires_grad=True)
    expected = F.linear(hidden, weight)
    monkeypatch.setattr(head, "_padding_pays", lambda hidden, weight: True)
    scores = head_scores(hidden, weight)
    assert scores.shape == (2, 5, 37) and scores.view(10, 37).shape == (10, 37)
    torch.testing.assert_close(scores, expected)
    upstream = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(scores, (hidden, weight), upstream),
        torch.autograd.grad(expected, (hidden, weight), upstream),
    )


def test_padded_scores_have_the_dtype_of_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_padding_pays", lambda hidden, weight: True)
    hidden, weight = torch.randn(5, 16), torch.randn(37, 16)
    with torch.autocast("cpu", torch.bfloat16):
        scores, expected = head_scores(hidden, weight), F.linear(hidden, weight)
    assert scores.dtype == torch.bfloat16
    torch.testing.assert_close(scores, expected)


def test_scores_on_a_cpu_are_those_of_the_plain_product() -> None:
    hidden, weight = torch.randn(2, 700, 8), torch.randn(37, 8)
    scores = head_scores(hidden, weight)
    assert torch.equal(scores, F.linear(hidden, weight)) and scores.is_contiguous()
