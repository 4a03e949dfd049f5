"""Losses: settings, the cross-entropy of a linear head in chunks of logits, and the e-exponentiated loss."""

from longshort.losses.bases import BASES, Loss, hinge, logistic, squared_error, squared_hinge
from longshort.losses.linear import linear_cross_entropy
from longshort.losses.settings import LossSettings
from longshort.losses.transform import capped_scores, exponentiated, transform_scores

__all__ = [
    "BASES",
    "Loss",
    "LossSettings",
    "capped_scores",
    "exponentiated",
    "hinge",
    "linear_cross_entropy",
    "logistic",
    "squared_error",
    "squared_hinge",
    "transform_scores",
]
