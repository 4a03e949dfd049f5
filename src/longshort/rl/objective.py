"""The objective of GRPO: advantages within groups, a clipped ratio, and the KL divergence to a reference.

Shapes: B sequences, T new tokens. Log-probabilities are those of what was drawn, whatever it was: tokens or mixtures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from longshort.numeric import is_integral, is_real

_LARGEST_LOG_RATIO = 20.0
"""Log-ratios are cut here, before their exponential could overflow."""
_LARGEST_KL = 10.0
"""A token's KL estimate is cut here, as in the code of arXiv 2511.06411; beyond it has no gradient."""


class Objective(NamedTuple):
    """The loss of some sequences, and sums over their tokens from which shares and means follow."""

    loss: Tensor
    """What to minimise."""
    clipped: Tensor
    """Number of tokens whose ratio was clipped."""
    kl: Tensor
    """Sum of the KL estimates; 0 without a reference."""


def group_advantages(rewards: Tensor, group: int, *, normalise: bool = True) -> Tensor:
    """(B,) rewards less the mean of their group, over its standard deviation plus 1e-6 if `normalise`.

    Each `group` consecutive sequences answer one problem. A group of equal rewards has no advantage.

    >>> group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0]), 2, normalise=False)
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000,  0.0000,  0.0000])
    """
    if not isinstance(rewards, Tensor) or rewards.ndim != 1 or not rewards.is_floating_point() or not len(rewards):
        got = f"{rewards.dtype} of shape {tuple(rewards.shape)}" if isinstance(rewards, Tensor) else repr(rewards)
        raise ValueError(f"rewards must be a floating-point tensor (B,), got {got}")
    if not is_integral(group) or group < 2 or len(rewards) % group:
        raise ValueError(f"group must be an integer >= 2 that divides the {len(rewards)} rewards, got {group!r}")
    if not bool(rewards.isfinite().all()):
        raise ValueError(f"rewards must be finite, got {rewards[~rewards.isfinite()][0].item()}")
    grouped = rewards.view(-1, group)
    centred = grouped - grouped.mean(1, keepdim=True)
    if normalise:
        centred = centred / (grouped.std(1, keepdim=True) + 1e-6)
    equal = (grouped == grouped[:, :1]).all(1, keepdim=True)
    return centred.masked_fill(equal, 0).flatten()  # the rounded mean of equal rewards may be none of them


def signal_share(rewards: Tensor, group: int) -> float:
    """The share of groups whose rewards are not all equal, which alone have a gradient.

    >>> signal_share(torch.tensor([1.0, 0.0, 1.0, 1.0]), 2)
    0.5
    """
    grouped = rewards.view(-1, group)
    return float((grouped != grouped[:, :1]).any(1).double().mean())


def clipped_objective(
    log_probs: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float = 0.2,
    dual_clip: float | None = None,
    reference: Tensor | None = None,
    kl: float = 0.0,
    denominator: Tensor | float | None = None,
) -> Objective:
    """The clipped objective of PPO (arXiv 1707.06347) as a loss, plus `kl` times the k3 estimate of the KL divergence.

    With ratio = exp(log_probs - old), a token's loss is max(-A ratio, -A clip(ratio)); for a negative advantage A it
    is at most -A dual_clip (arXiv 1912.09729).

    Args:
        log_probs: (B, T) of the model that learns; differentiable.
        old: (B, T) of the model that drew.
        advantages: (B,), the same for all tokens of a sequence.
        mask: (B, T) which tokens count.
        reference: (B, T) of the reference model.
        denominator: divides the sum over the tokens; their number if None.

    >>> new, old = torch.tensor([[0.5, 0.3]]).log(), torch.tensor([[0.5, 0.2]]).log()
    >>> clipped_objective(new, old, torch.tensor([1.0]), torch.tensor([[True, True]])).loss
    tensor(-1.1000)
    """
    _check(log_probs, old, advantages, mask, reference)
    for name, value, least, right in (("clip", clip, 0, "above 0"), ("dual_clip", dual_clip, 1, "above 1")):
        if value is not None and not (is_real(value) and least < value < math.inf):
            raise ValueError(f"{name} must be a finite number {right}, got {value!r}")
    if not (is_real(kl) and 0 <= kl < math.inf) or (kl and reference is None):
        raise ValueError(f"kl must be a finite number >= 0, and 0 without a reference, got {kl!r}")
    ratio = (log_probs - old).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    weight = -advantages[:, None].to(ratio.dtype)
    plain, bounded = weight * ratio, weight * ratio.clamp(1 - clip, 1 + clip)
    losses = torch.maximum(plain, bounded)
    clipped = bounded > plain
    if dual_clip is not None:
        most = weight * dual_clip
        clipped = clipped | ((weight > 0) & (losses > most))
        losses = torch.where(weight > 0, torch.minimum(losses, most), losses)
    total_kl = torch.zeros((), dtype=ratio.dtype, device=ratio.device)
    if reference is not None:
        estimate = k3(log_probs, reference)
        losses, total_kl = losses + kl * estimate, (estimate.detach() * mask).sum()
    below = mask.sum() if denominator is None else denominator
    return Objective((losses * mask).sum() / below, (clipped & mask).sum(), total_kl)


def _check(log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, reference: Tensor | None) -> None:
    """Raise where shapes differ: broadcast, they would give a loss of other sequences' tokens."""
    shape = tuple(log_probs.shape)
    if len(shape) != 2:
        raise ValueError(f"log_probs must have shape (B, T), got {shape}")
    wanted = {"old": (old, shape), "advantages": (advantages, shape[:1]), "mask": (mask, shape)}
    if reference is not None:
        wanted["reference"] = (reference, shape)
    for name, (tensor, right) in wanted.items():
        if tuple(tensor.shape) != right:
            raise ValueError(f"{name} must have shape {right}, got {tuple(tensor.shape)}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool, got {mask.dtype}")


def k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """`kl_estimate` of KL(model || reference), cut to 10."""
    difference = (reference - log_probs).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (difference.expm1() - difference).clamp(max=_LARGEST_KL)


def kl_estimate(drawn: Tensor, other: Tensor) -> Tensor:
    """An estimate of KL(drawn || other) from each sample of `drawn`, given both log-probabilities; never negative.

    With r = other / drawn it is r - 1 - log r, unbiased as -log r is and of less variance
    (Schulman 2020, joschu.net/blog/kl-approx.html).

    >>> kl_estimate(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.5, 0.25]).log())
    tensor([0.0000, 0.1931])
    """
    log_ratio = other - drawn
    return log_ratio.expm1() - log_ratio
