"""The signal to noise of a gradient, from the gradients of its two halves."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Copies of the gradients as they are now."""
    return [p.grad.clone() for p in parameters if p.grad is not None]


def signal_and_noise(first: list[Tensor], whole: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Estimates of |G|^2 and of the variance about it, for a gradient that is the sum of two halves.

    The halves are of independent problems, so with h = G + n the gradient of a half by itself, E<h1, h2> = |G|^2, and
    |h1 - h2|^2 / 4 is in mean the variance of the whole gradient. Single estimates are noisy, and the first may be
    negative: average each over steps before dividing.

    Args:
        first: the first half's part of the sum.
        whole: the sum.

    >>> first, whole = [torch.tensor([1.0, 0.5])], [torch.tensor([2.0, 0.0])]
    >>> signal_and_noise(first, whole)
    (tensor(3.), tensor(1.))
    """
    second = torch._foreach_sub(whole, first)
    dot = torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
    apart = torch.stack(torch._foreach_norm(torch._foreach_sub(first, second))).square().sum()
    return 4 * dot, apart
