"""The losses that are compared: the base, its e-exponentiated forms, third-party robust losses, and plain controls.

A loss takes scores (P, b, K) of P models and targets (P, b) and returns the sum over models of the mean over points, so
that each model's gradient is its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.losses import Loss, exponentiated

EXPONENTS = (0.25, 0.5, 0.6, 0.75, 0.9)
GCE_POWER = 0.7
SYMMETRIC_WEIGHTS, SYMMETRIC_LOG_ZERO = (0.1, 1.0), -4.0
BOOTSTRAP_TRUST = 0.8
TEMPERATURE = 4.0


@dataclass(frozen=True, kw_only=True)
class LossVariant:
    """One way to train."""

    name: str
    loss: Loss
    weight_decay: float = 0.0
    """Decoupled, per step: weights are multiplied by 1 - rate * weight_decay."""


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return _summed(-_log_probability(scores, targets))


def generalised(scores: Tensor, targets: Tensor) -> Tensor:
    """Zhang and Sabuncu 2018, arXiv 1805.07836: (1 - p^q) / q of the label's probability p."""
    return _summed((1 - (GCE_POWER * _log_probability(scores, targets)).exp()) / GCE_POWER)


def symmetric(scores: Tensor, targets: Tensor) -> Tensor:
    """Wang et al. 2019, arXiv 1908.06112: cross-entropy and its reverse, in which log 0 is -4."""
    forward, backward = SYMMETRIC_WEIGHTS
    log_p = _log_probability(scores, targets)
    return _summed(-forward * log_p - backward * SYMMETRIC_LOG_ZERO * (1 - log_p.exp()))


def bootstrap(scores: Tensor, targets: Tensor) -> Tensor:
    """Reed et al. 2014, arXiv 1412.6596, hard: the label has weight 0.8, the model's own answer the rest."""
    own = scores.argmax(-1)
    mixed = BOOTSTRAP_TRUST * _log_probability(scores, targets)
    return _summed(-mixed - (1 - BOOTSTRAP_TRUST) * _log_probability(scores, own))


def ramp(scores: Tensor, targets: Tensor) -> Tensor:
    """The hinge of the margin over the best other class, cut at 2 (Collobert et al. 2006, with s = -1)."""
    picked = scores.gather(-1, targets[..., None])
    others = scores.scatter(-1, targets[..., None], -torch.inf).amax(-1)
    return _summed((1 - (picked[..., 0] - others)).clamp(0, 2))


def at_temperature(scores: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(scores / TEMPERATURE, targets)


BASE = "cross-entropy"
EXPONENTIATED = tuple(f"e {e:g}" for e in EXPONENTS)
RIVALS = ("generalised CE", "symmetric CE", "bootstrap", "ramp")
LOSSES = (
    LossVariant(name=BASE, loss=cross_entropy),
    *(LossVariant(name=f"e {e:g}", loss=exponentiated(cross_entropy, e)) for e in EXPONENTS),
    LossVariant(name="generalised CE", loss=generalised),
    LossVariant(name="symmetric CE", loss=symmetric),
    LossVariant(name="bootstrap", loss=bootstrap),
    LossVariant(name="ramp", loss=ramp),
    LossVariant(name="weight decay 0.1", loss=cross_entropy, weight_decay=0.1),
    LossVariant(name="weight decay 1", loss=cross_entropy, weight_decay=1.0),
    LossVariant(name=f"temperature {TEMPERATURE:g}", loss=at_temperature),
)


def _log_probability(scores: Tensor, targets: Tensor) -> Tensor:
    """(P, b)"""
    return -F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)


def _summed(losses: Tensor) -> Tensor:
    return losses.mean(-1).sum()
