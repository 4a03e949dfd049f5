"""What both forms of a decoding step share: where a head's rows lie, and where its results go."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class HeadLayout(NamedTuple):
    """Where the rows of a KV head lie in flat storage, counted in rows of D numbers."""

    first: int
    """Of the first batch row."""
    apart: int
    """From one batch row to the next."""
    rows: int
    """Position p lies in row p modulo these."""


def results_of(q: Tensor, stats: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Room for them; out lies as (B, T, H, D), as the projection after it reads it."""
    batch, heads, new, dim = q.shape
    out = q.new_empty((batch, new, heads, dim)).transpose(1, 2)
    high, low = (q.new_empty(heads if stats else 0, dtype=torch.float32) for _ in range(2))
    return out, high, low
