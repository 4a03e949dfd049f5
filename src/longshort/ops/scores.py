"""The score of a pair, x = softcap(logit exp(-decay distance)) - slope distance, in PyTorch, for all backends but two.

`reference` has its own copy of the formula, so that tests can find an error here; the Triton kernels have theirs in
`triton/scores.py`. Rates are float64: a rate times a distance of 10^5 needs the digits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scores(
    logits: Tensor, distance: Tensor, decays: Tensor | None, slopes: Tensor | None, softcap: float | None
) -> Tensor:
    """x for logits = scale * q.k, before the mask; distances and rates broadcast to the shape of the logits."""
    return scores_and_derivative(logits, distance, decays, slopes, softcap, derivative=False)[0]


def scores_and_derivative(
    logits: Tensor,
    distance: Tensor,
    decays: Tensor | None,
    slopes: Tensor | None,
    softcap: float | None,
    *,
    derivative: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """x as in `scores`, and dx/dlogits; the latter is None if it is 1 or not asked for."""
    x, factor = logits, None
    if decays is not None:
        factor = decay_factor(decays, distance, x.dtype)
        x = x * factor
    if softcap is not None:
        capped = torch.tanh(x / softcap)
        x = softcap * capped
        if derivative:
            flat = 1 - capped.square()
            factor = flat if factor is None else factor * flat
    if slopes is not None:
        x = x + slope_bias(slopes, distance, x.dtype)
    return x, factor if derivative else None


def decay_factor(decays: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
    """The factor of a logit; the product of the factors of two distances is the factor of their sum."""
    return torch.exp(-decays * distance).to(dtype)


def slope_bias(slopes: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias that is added to a capped logit."""
    return (-slopes * distance).to(dtype)
