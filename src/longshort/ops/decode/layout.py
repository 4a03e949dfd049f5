"""What both forms of a decoding step share: where a head's rows are stored, and where its results go."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class HeadLayout(NamedTuple):
    """Where the rows of a KV head are in flat storage, counted in rows of D numbers."""

    first: int
    """First row of the first sequence, after those of `kept`."""
    apart: int
    """Rows from one sequence to the next."""
    rows: int
    """Number of rows; position p is stored in row p modulo this."""
    kept: int = 0
    """Number of rows right before `first`, which hold the first keys of a document in their order."""


def results_of(q: Tensor, extremes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors for the results; out has (B, T, H, D) memory, as the projection after it reads it."""
    batch, heads, new, dim = q.shape
    out = q.new_empty((batch, new, heads, dim)).transpose(1, 2)
    high, low = (q.new_empty(heads if extremes > i else 0, dtype=torch.float32) for i in range(2))
    return out, high, low
