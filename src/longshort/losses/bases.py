"""The base losses that the e-exponentiated loss can be built on, by name; each is a mean over examples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.ops import transforms

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function from scores and targets to a loss."""


def logistic(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of log(1 + exp(-y s)) over examples.

    Here and in the hinge losses, targets are signs y, +1 or -1, in the shape of the scores; or, for scores (N, V),
    class indices (N,), which are taken as each class against the rest, summed over classes.

    >>> logistic(torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]))
    tensor(0.6931)
    """
    return _mean_over_rows(F.softplus(-_signs(scores, targets) * scores), scores, targets)


def hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of max(0, 1 - y s) over examples; targets as in `logistic`.

    >>> hinge(torch.tensor([[2.0, -0.5]]), torch.tensor([0]))
    tensor(0.5000)
    """
    return _mean_over_rows((1 - _signs(scores, targets) * scores).relu(), scores, targets)


def squared_hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of max(0, 1 - y s)^2 over examples; targets as in `logistic`.

    >>> squared_hinge(torch.tensor([[2.0, -0.5]]), torch.tensor([0]))
    tensor(0.2500)
    """
    return _mean_over_rows((1 - _signs(scores, targets) * scores).relu().square(), scores, targets)


def squared_error(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of (s - y)^2 over examples; targets have the shape of the scores, or are class indices (N,), made one-hot.

    >>> squared_error(torch.tensor([[1.0, 0.5]]), torch.tensor([0]))
    tensor(0.2500)
    """
    y = targets if targets.shape == scores.shape else _one_hot(scores, targets)
    return _mean_over_rows((scores - y).square(), scores, targets)


BASES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "logistic": logistic,
    "hinge": hinge,
    "squared_hinge": squared_hinge,
    "squared_error": squared_error,
}
"""Base losses by name; each is a mean over examples."""


def _signs(scores: Tensor, targets: Tensor) -> Tensor:
    if targets.shape == scores.shape:
        checked = targets.device.type == "cpu" and not torch.compiler.is_compiling() and not transforms.active()
        if checked and not ((targets == 1) | (targets == -1)).all():
            raise ValueError("targets in the shape of the scores must be +1 or -1, got other values")
        return targets
    return 2 * _one_hot(scores, targets) - 1


def _one_hot(scores: Tensor, targets: Tensor) -> Tensor:
    n_classes = scores.shape[-1]
    if targets.shape != scores.shape[:-1] or targets.dtype != torch.int64:
        expected = f"{tuple(scores.shape)}, or int64 class indices of shape {tuple(scores.shape[:-1])}"
        raise ValueError(f"targets must have shape {expected}, got {targets.dtype} of shape {tuple(targets.shape)}")
    try:  # F.one_hot looks at the targets, which vmap does not allow
        return torch.zeros_like(scores).scatter(-1, targets.unsqueeze(-1), 1)
    except RuntimeError as error:
        raise ValueError(f"targets must be classes from 0 to {n_classes - 1}, got others: {error}") from None


def _mean_over_rows(losses: Tensor, scores: Tensor, targets: Tensor) -> Tensor:
    return losses.mean() if targets.shape == scores.shape else losses.sum(-1).mean()
