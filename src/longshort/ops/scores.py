"""The score of a pair, x = softcap(logit exp(-decay distance)) - slope distance, in PyTorch: for every form but two.

`reference` spells the formula out for itself, so that an error here cannot hide from it; the Triton kernels have it in
their own language (`triton/scores.py`). Rates are float64: one times a distance of 10^5 needs the digits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scores(
    logits: Tensor, distance: Tensor, decays: Tensor | None, slopes: Tensor | None, softcap: float | None
) -> Tensor:
    """x of logits = scale * q.k, before the mask; distances and rates broadcast to their shape."""
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
    """x as in `scores`, and dx/dlogits; None where that is 1 or not asked for."""
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
    """By which a logit is multiplied; a product of two distances' factors is that of their sum."""
    return torch.exp(-decays * distance).to(dtype)


def slope_bias(slopes: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
    """Which is added to a capped logit."""
    return (-slopes * distance).to(dtype)
