"""The e-exponentiated loss, which damps scores before any base loss, and the base losses by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]
"""From scores and targets to a loss."""


def transform_scores(scores: Tensor, e: float = 0.5, c: float = 0.01) -> Tensor:
    """h_e(x) = sign(x) |x|^e where |x| >= c, and c^(e-1) x below, of each score (Hajra 2019, arXiv 1902.06127).

    Continuous, odd and monotone (at e = 0 constant beyond c), so that the order of the scores stays. Its slope is at
    most c^(e-1), and finite at 0 for every e. Half precision is computed and returned in fp32. Differentiable twice.

    >>> transform_scores(torch.tensor([-100.0, 0.0, 0.005, 4.0]))
    tensor([-10.0000,   0.0000,   0.0500,   2.0000])
    """
    check_exponent("e", e, "c", c)
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        found = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"scores must be a floating-point tensor, got {found}")
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if e == 1:
        return scores
    if torch.compiler.is_compiling():  # fuses the definition and its derivative by itself, one pass each
        return transformed(scores, _constant(e), _constant(c))
    return _Transform.apply(scores, float(e), float(c))


def _constant(x: float) -> float:
    """x as a constant of compiled code. torch.compile makes a variable of a number that it has met with two values, and
    by a variable exponent Inductor takes wrong powers, or fails (torch 2.13).
    """
    return float.fromhex(float(x).hex())


class _Transform(torch.autograd.Function):
    """Keeps the scores and nothing else."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, e: float, c: float) -> Tensor:
        return transformed(scores, e, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        scores, ctx.e, ctx.c = inputs
        ctx.save_for_backward(scores)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad * slope_of(ctx.saved_tensors[0], ctx.e, ctx.c), None, None


# Sizes are kept from falling below c before the power is taken: an unused branch of a `where` would send its NaN back.
def transformed(x: Tensor, e: float, c: float) -> Tensor:
    """h_e by the definition, at any order of differentiation."""
    size = x.abs()
    # NaN is not >= c and so stays NaN, where NaN^0 would be 1.
    return torch.where(size >= c, size.clamp_min(c).pow(e).copysign(x), c ** (e - 1) * x)


def slope_of(x: Tensor, e: float, c: float) -> Tensor:
    """The derivative of h_e."""
    size = x.abs()
    return torch.where(size < c, c ** (e - 1), e * size.clamp_min(c).pow(e - 1))


def exponentiated(base: str | Loss, e: float = 0.5, c: float = 0.01) -> Loss:
    """The e-exponentiated loss: `base` of `transform_scores(scores, e, c)` (Hajra 2019, arXiv 1902.06127).

    It damps scores of large size, so that a point far on the wrong side, such as a wrongly labelled one, weighs less;
    e = 1 is the base loss itself.

    Args:
        base: A callable (scores, targets), or one of `BASES`: cross_entropy, logistic, hinge, squared_hinge,
            squared_error.
        e: From 0 to 1.
        c: The size below which the transform is linear; 0.005 to 0.01 in the author's code.

    >>> scores, targets = torch.tensor([[4.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])
    >>> exponentiated("cross_entropy", e=0.5)(scores, targets)  # of the scores 2 and 3 in place of 4 and 9
    tensor(1.5878)
    """
    if isinstance(base, str):
        if base not in BASES:
            raise ValueError(f"base must be a callable or one of {', '.join(BASES)}, got {base!r}")
        base = BASES[base]
    if not callable(base):
        raise ValueError(f"base must be a callable (scores, targets) or a name, got {type(base).__name__}")
    check_exponent("e", e, "c", c)
    return _Exponentiated(base, e, c)


@dataclass(frozen=True)
class _Exponentiated:
    base: Loss
    e: float
    c: float

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.base(transform_scores(scores, self.e, self.c), targets)


def logistic(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of log(1 + exp(-y s)) over rows.

    Targets of this and of the hinge losses are signs y of the scores' shape, +1 or -1; or, for scores (N, V), (N,)
    class indices: each class against the rest, summed over classes.

    >>> logistic(torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]))
    tensor(0.6931)
    """
    return _mean_over_rows(F.softplus(-_signs(scores, targets) * scores), scores, targets)


def hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of max(0, 1 - y s) over rows; targets as in `logistic`.

    >>> hinge(torch.tensor([[2.0, -0.5]]), torch.tensor([0]))
    tensor(0.5000)
    """
    return _mean_over_rows((1 - _signs(scores, targets) * scores).relu(), scores, targets)


def squared_hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of max(0, 1 - y s)^2 over rows; targets as in `logistic`.

    >>> squared_hinge(torch.tensor([[2.0, -0.5]]), torch.tensor([0]))
    tensor(0.2500)
    """
    return _mean_over_rows((1 - _signs(scores, targets) * scores).relu().square(), scores, targets)


def squared_error(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean of (s - y)^2 over rows; targets of the scores' shape, or (N,) class indices, which count as one-hot.

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
"""Base losses by name; each is the mean over rows."""


def _signs(scores: Tensor, targets: Tensor) -> Tensor:
    if targets.shape == scores.shape:
        checked = targets.device.type == "cpu" and not torch.compiler.is_compiling()
        if checked and not ((targets == 1) | (targets == -1)).all():
            raise ValueError("targets of the scores' shape must be +1 or -1")
        return targets
    return 2 * _one_hot(scores, targets) - 1


def _one_hot(scores: Tensor, targets: Tensor) -> Tensor:
    n_classes = scores.shape[-1]
    if targets.shape != scores.shape[:-1] or targets.dtype != torch.int64:
        expected = f"{tuple(scores.shape)}, or int64 class indices of shape {tuple(scores.shape[:-1])}"
        raise ValueError(f"targets must have shape {expected}, got {targets.dtype} of shape {tuple(targets.shape)}")
    try:
        return F.one_hot(targets, n_classes).to(scores.dtype)
    except RuntimeError as error:
        raise ValueError(f"targets must be classes from 0 to {n_classes - 1}: {error}") from None


def _mean_over_rows(losses: Tensor, scores: Tensor, targets: Tensor) -> Tensor:
    return losses.mean() if targets.shape == scores.shape else losses.sum(-1).mean()


_BELOW = 1e-30, 1e30
"""Bounds of c, within which c and the slope c^(e-1) are numbers of fp32 for every e."""


def check_exponent(exponent_name: str, e: float, below_name: str, c: float) -> None:
    """Raise, by the names the caller gave them, where e or c is out of range."""
    if not _is_number(e) or not 0 <= e <= 1:
        raise ValueError(f"{exponent_name} must be a number from 0 to 1, got {e!r}")
    smallest, largest = _BELOW
    if not _is_number(c) or not smallest <= c <= largest:
        raise ValueError(f"{below_name} must be a number from {smallest:g} to {largest:g}, got {c!r}")


def _is_number(value: object) -> bool:
    """A variable number of torch.compile is one too."""
    return isinstance(value, int | float | torch.SymFloat | torch.SymInt) and not isinstance(value, bool)
