"""Losses: cross-entropy of a linear head, a chunk of logits at a time, and the e-exponentiated loss."""

from longshort.losses.damped import (
    BASES,
    Loss,
    exponentiated,
    hinge,
    logistic,
    squared_error,
    squared_hinge,
    transform_scores,
)
from longshort.losses.linear import linear_cross_entropy

__all__ = [
    "BASES",
    "Loss",
    "exponentiated",
    "hinge",
    "linear_cross_entropy",
    "logistic",
    "squared_error",
    "squared_hinge",
    "transform_scores",
]
