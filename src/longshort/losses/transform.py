"""Transforms of output scores: the e-exponentiated loss, which damps them before any base loss, and the softcap.

The base losses themselves are in `losses.bases`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longshort.losses.bases import BASES, Loss


def transform_scores(scores: Tensor, e: float = 0.5, c: float = 0.01) -> Tensor:
    """h_e(x) = sign(x) |x|^e where |x| >= c, and c^(e-1) x below, of each score (Hajra 2019, arXiv 1902.06127).

    Continuous, odd and monotone (at e = 0 constant beyond c), so it keeps the order of the scores. Its slope is at
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
    if torch.compiler.is_compiling():  # the compiler fuses the definition and its derivative into one pass each
        return transformed(scores, _constant(e), _constant(c))
    return _Transform.apply(scores, float(e), float(c))


def _constant(x: float) -> float:
    """x as a constant of compiled code. torch.compile turns a number that it has met with two values into a variable,
    and with a variable exponent Inductor computes wrong powers, or fails (torch 2.13).
    """
    return float.fromhex(float(x).hex())


class _Transform(torch.autograd.Function):
    """Saves the scores for backward and nothing else."""

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


# |x| is clamped to at least c before the power is taken: the unused branch of a `where` would pass NaN to the gradient.
def transformed(x: Tensor, e: float, c: float) -> Tensor:
    """h_e by its definition, differentiable any number of times."""
    size = x.abs()
    # NaN is not >= c and so stays NaN, where NaN^0 would be 1.
    return torch.where(size >= c, size.clamp_min(c).pow(e).copysign(x), c ** (e - 1) * x)


def slope_of(x: Tensor, e: float, c: float) -> Tensor:
    """The derivative of h_e."""
    size = x.abs()
    return torch.where(size < c, c ** (e - 1), e * size.clamp_min(c).pow(e - 1))


def capped_scores(scores: Tensor, softcap: float) -> Tensor:
    """softcap * tanh(scores / softcap), which bounds the logits (Gemma 2, arXiv 2408.00118), in fp32 or float64.

    >>> capped_scores(torch.tensor([0.1, 1000.0]), 30.0)
    tensor([ 0.1000, 30.0000])
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return softcap * torch.tanh(scores / softcap)


def exponentiated(base: str | Loss, e: float = 0.5, c: float = 0.01) -> Loss:
    """The e-exponentiated loss: `base` of `transform_scores(scores, e, c)` (Hajra 2019, arXiv 1902.06127).

    It damps large scores, so that a point far on the wrong side, such as a mislabelled one, weighs less; e = 1 is the
    base loss itself.

    Args:
        base: a callable (scores, targets), or one of `BASES`: cross_entropy, logistic, hinge, squared_hinge,
            squared_error.
        e: from 0 to 1.
        c: absolute score below which the transform is linear; 0.005 to 0.01 in the author's code.

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


_BELOW = 1e-30, 1e30
"""Bounds of c within which fp32 can hold c and the slope c^(e-1) for every e; a softcap has the same."""


def check_exponent(exponent_name: str, e: float, below_name: str, c: float) -> None:
    """Raise if e or c is out of range, using the caller's names for them."""
    if not is_number(e) or not 0 <= e <= 1:
        raise ValueError(f"{exponent_name} must be a number from 0 to 1, got {e!r}")
    smallest, largest = _BELOW
    if not is_number(c) or not smallest <= c <= largest:
        raise ValueError(f"{below_name} must be a number from {smallest:g} to {largest:g}, got {c!r}")


def check_softcap(softcap_name: str, softcap: float | None, exponent_name: str, e: float) -> None:
    """Raise if a softcap is out of range, or comes with an exponent, using the caller's names for them."""
    smallest, largest = _BELOW
    if softcap is None:
        return
    if not is_number(softcap) or not smallest <= softcap <= largest:
        raise ValueError(f"{softcap_name} must be None or a number from {smallest:g} to {largest:g}, got {softcap!r}")
    if e != 1:
        raise ValueError(f"{softcap_name} must be None with {exponent_name}={e} below 1, got {softcap!r}")


def is_number(value: object) -> bool:
    """A symbolic number of torch.compile counts too."""
    return isinstance(value, int | float | torch.SymFloat | torch.SymInt) and not isinstance(value, bool)
