"""Smoothing, the S of LaS attention (arXiv 2311.16620): average pooling AP of the attention rows over the keys.

AP is linear in a row, so AP(S) V = S (A V) with A the transposed pooling: the op pools the values, and every backend
works unchanged. Pooling the logits, before the softmax, has no such form and is left to the reference.

Shapes: B batch, H heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

SIDES = ("causal", "centred")
STAGES = ("after", "before")


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """How attention rows are pooled: with zero padding and a constant 1 / width, so border rows sum to less than 1.

    >>> Smoothing(width=3).offsets, Smoothing(width=3, side="centred").offsets
    (range(-2, 1), range(-1, 2))
    """

    width: int
    """Values that are averaged; 1 changes nothing."""
    side: str = "causal"
    """causal: value i averages values i - width + 1 to i; centred: as many after as before it, with an odd width."""
    stage: str = "after"
    """after the softmax, or before it: pooled logits, an experiment that only the reference backend supports."""
    lookahead: bool = False
    """Allow centred smoothing in causal attention: each position then sees (width - 1) / 2 later ones."""

    def __post_init__(self) -> None:
        if not isinstance(self.width, int) or isinstance(self.width, bool) or self.width < 1:
            raise ValueError(f"smoothing must be an integer >= 1, got {self.width!r}")
        if self.side not in SIDES:
            raise ValueError(f"smoothing_side must be one of {', '.join(SIDES)}, got {self.side!r}")
        if self.stage not in STAGES:
            raise ValueError(f"smoothing_stage must be one of {', '.join(STAGES)}, got {self.stage!r}")
        if self.side == "centred" and self.width % 2 == 0:
            raise ValueError(f"smoothing must be odd where smoothing_side is centred, got {self.width}")

    @property
    def offsets(self) -> range:
        """Positions, relative to i, of the values that value i averages."""
        ahead = self.width // 2 if self.side == "centred" else 0
        return range(ahead + 1 - self.width, ahead + 1)

    def check(self, *, causal: bool) -> None:
        """Raise if it would let a causal model see the future without `lookahead`."""
        if causal and self.side == "centred" and self.width > 1 and not self.lookahead:
            raise ValueError(
                "smoothing_side must be 'causal' in causal attention, got 'centred', which averages "
                f"{self.width // 2} later values and so leaks the future: smooth on the causal side, or make the "
                "attention two-sided (causal=False), or set lookahead=True where nothing is predicted left to right"
            )

    def check_backend(self, backend: str) -> None:
        """Raise if the backend cannot pool logits."""
        if self.stage == "before" and backend != "reference":
            raise ValueError(
                f'smoothing_stage must be "after" with the {backend} backend, got "before": pooling the logits before '
                'the softmax is an experiment that only backend="reference" supports'
            )


def smooth_values(v: Tensor, smoothing: Smoothing, segments: Tensor | None = None) -> Tensor:
    """A V: each value (B, H, S, D) becomes the sum of its neighbours divided by the width, in fp32 or wider.

    Values before the first, after the last, in another segment (B, S) and in padding (negative ids) count as zeros.

    >>> smooth_values(torch.ones(1, 1, 4, 1), Smoothing(width=2)).flatten()
    tensor([0.5000, 1.0000, 1.0000, 1.0000])
    """
    length, first = v.shape[2], smoothing.offsets[0]
    before, after = -first, smoothing.offsets[-1]
    wide = F.pad(v.to(torch.promote_types(v.dtype, torch.float32)), (0, 0, before, after))
    parts = [wide[:, :, start : start + length] for start in range(smoothing.width)]
    if segments is not None:
        ids = F.pad(segments, (before, after), value=-1)
        for start, part in enumerate(parts):
            apart = (segments != ids[:, start : start + length]) | (segments < 0)
            parts[start] = part.masked_fill(apart[:, None, :, None], 0)  # not a product: padding may hold NaN
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return (total / smoothing.width).to(v.dtype)


def pool_rows(rows: Tensor, smoothing: Smoothing) -> Tensor:
    """AP of rows (B, H, T, S) over the keys: the entry of key j averages those of all keys whose values include j.

    On the causal side these are keys j to j + width - 1. Entries that a query does not see must be 0.

    >>> pool_rows(torch.tensor([[[[0.0, 1.0, 2.0, 0.0]]]]), Smoothing(width=2)).flatten()
    tensor([0.5000, 1.5000, 1.0000, 0.0000])
    """
    n_keys, offsets = rows.shape[3], smoothing.offsets
    padded = F.pad(rows, (offsets[-1], -offsets[0]))
    total = padded[..., :n_keys]
    for start in range(1, smoothing.width):
        total = total + padded[..., start : start + n_keys]
    return total / smoothing.width
