"""Evaluation mode for as long as a block of code takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and afterwards, also after an error, into the mode that it was in.

    >>> model = nn.Linear(2, 2)
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
