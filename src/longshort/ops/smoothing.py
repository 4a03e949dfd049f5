"""Smoothing, the S of LaS attention (arXiv 2311.16620): average pooling AP along the keys, in either of two orders.

After the softmax, AP is linear in a row, so AP(S) V = S (A V) with A the transposed pooling: smoothed values. Before
it, the pooled logits are those of smoothed keys, q . k~_j = mean_d exp(-decay d) q . k_(j-d). The op smooths one or the
other, and every backend works unchanged. Pooled logits that no smoothed keys give are left to the reference.

Shapes: B batch, H heads, T queries, S keys, D head dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.heads import HeadPlan
from longshort.numeric import is_int

SIDES = ("causal", "centred", "leading")
STAGES = ("after", "before")


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """How values or keys are averaged: with zero padding and a constant 1 / width, so less is left at the borders.

    >>> Smoothing(width=3).offsets, Smoothing(width=3, side="centred").offsets
    (range(-2, 1), range(-1, 2))
    """

    width: int
    """Values or keys that are averaged; 1 changes nothing."""
    side: str = "causal"
    """What value or key i averages: causal, i - width + 1 to i; centred, as many after as before it, with an odd
    width; leading, i to i + width - 1."""
    stage: str = "after"
    """after the softmax: smoothed values; before it: pooled logits, by smoothed keys where those exist."""
    lookahead: bool = False
    """Allow a side that takes in later positions in causal attention, where it leaks the future."""

    def __post_init__(self) -> None:
        if not is_int(self.width) or self.width < 1:
            raise ValueError(f"smoothing must be an integer >= 1, got {self.width!r}")
        if self.side not in SIDES:
            raise ValueError(f"smoothing_side must be one of {', '.join(SIDES)}, got {self.side!r}")
        if self.stage not in STAGES:
            raise ValueError(f"smoothing_stage must be one of {', '.join(STAGES)}, got {self.stage!r}")
        if self.side == "centred" and self.width % 2 == 0:
            raise ValueError(f"smoothing must be odd where smoothing_side is centred, got {self.width}")

    @property
    def offsets(self) -> range:
        """Positions, relative to i, of what value or key i averages."""
        ahead = {"causal": 0, "centred": self.width // 2, "leading": self.width - 1}[self.side]
        return range(ahead + 1 - self.width, ahead + 1)

    def check(self, *, causal: bool) -> None:
        """Raise if it would let a causal model see the future without `lookahead`.

        Before the softmax the leading side does not: logits of later keys count as zeros.
        """
        ahead = self.offsets[-1]
        harmless = self.side == "leading" and self.stage == "before"
        if causal and ahead and not harmless and not self.lookahead:
            raise ValueError(
                f"smoothing_side must be 'causal' in causal attention, got {self.side!r}, which averages "
                f"{ahead} later values and so leaks the future: smooth on the causal side, or make the "
                "attention two-sided (causal=False), or set lookahead=True where nothing is predicted left to right"
            )

    def without_keys(self, *, causal: bool, decays: tuple[float, ...] | None) -> str | None:
        """Why no smoothed keys give the pooled logits, or None if they do.

        >>> Smoothing(width=3, stage="before").without_keys(causal=True, decays=(0.0, 0.1))
        """
        if self.width == 1 or (causal and self.side == "causal"):
            return None
        if causal:
            return (
                f"with smoothing_side {self.side!r} the logits of keys after the query count as zeros, for each query "
                "different ones; smoothing_side 'causal' has smoothed keys"
            )
        if decays is not None and any(decays):
            return (
                "in two-sided attention with decays the pooled keys of one query lie on both sides of it; causal "
                "attention and plans without decays have smoothed keys"
            )
        return None

    def check_backend(self, backend: str, *, causal: bool, decays: tuple[float, ...] | None) -> None:
        """Raise if the backend cannot pool these logits."""
        if self.stage == "after" or backend == "reference":
            return
        why = self.without_keys(causal=causal, decays=decays)
        if why is not None:
            raise ValueError(
                f'smoothing_stage must be "after" with the {backend} backend, got "before", which needs keys that are '
                f'smoothed for all queries alike: {why}; backend="reference" forms whole attention matrices instead'
            )


def smooth_values(v: Tensor, smoothing: Smoothing, segments: Tensor | None = None) -> Tensor:
    """A V: each value (B, H, S, D) becomes the sum of its neighbours divided by the width, in fp32 or wider.

    Values before the first, after the last, in another segment (B, S) and in padding (negative ids) count as zeros.

    >>> smooth_values(torch.ones(1, 1, 4, 1), Smoothing(width=2)).flatten()
    tensor([0.5000, 1.0000, 1.0000, 1.0000])
    """
    total, *later = _parts(v, smoothing, segments)
    for part in later:
        total = total + part
    return (total / smoothing.width).to(v.dtype)


def smooth_keys(
    k: Tensor, smoothing: Smoothing, decays: tuple[float, ...] | None = None, segments: Tensor | None = None
) -> Tensor:
    """As `smooth_values`, each key weighted by exp(-decay d) at a distance of d, with the decay of its head; causal.

    Attention over these keys, with the same decays, has the logits of `k` pooled over keys j - width + 1 to j.

    >>> smooth_keys(torch.ones(1, 1, 3, 1), Smoothing(width=2, stage="before"), (math.log(2),)).flatten()
    tensor([0.5000, 0.7500, 0.7500])
    """
    if decays is None or not any(decays):
        return smooth_values(k, smoothing, segments)
    assert smoothing.offsets[-1] == 0
    total, *later = _parts(k, smoothing, segments)
    step_H11 = _numbers(tuple(math.exp(-decay) for decay in decays), total.dtype, k.device)[:, None, None]
    for part in later:
        total = torch.addcmul(part, total, step_H11)
    return (total / smoothing.width).to(k.dtype)


def smooth_keys_of(
    k: Tensor, v: Tensor, smoothing: Smoothing, decays: tuple[float, ...] | None, segments: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Smoothed keys, by the decays of the query heads, and the values that go with them: see `key_decays`."""
    decays = key_decays(decays, k.shape[1])
    if decays is not None and len(decays) > k.shape[1]:
        k, v = (x.repeat_interleave(len(decays) // x.shape[1], dim=1) for x in (k, v))
    return smooth_keys(k, smoothing, decays, segments), v


def key_decays(decays: tuple[float, ...] | None, n_kv_heads: int) -> tuple[float, ...] | None:
    """The decay of each KV head, or of each query head where those of a group differ and can share no smoothed keys.

    >>> key_decays((0.1, 0.1, 0.2, 0.2), 2), key_decays((0.1, 0.2), 1)
    ((0.1, 0.2), (0.1, 0.2))
    """
    if decays is None:
        return None
    group = len(decays) // n_kv_heads
    shared = decays[::group]
    return shared if decays == tuple(decay for decay in shared for _ in range(group)) else decays


def held_heads(plan: HeadPlan, n_kv_heads: int, smoothing: Smoothing | None) -> int:
    """Heads of the keys and values that are attended to: as many as query heads where keys are smoothed and those of a
    group decay differently.
    """
    if smoothing is None or smoothing.stage == "after":
        return n_kv_heads
    return len(key_decays(plan.decays, n_kv_heads) or range(n_kv_heads))


def _parts(x: Tensor, smoothing: Smoothing, segments: Tensor | None) -> list[Tensor]:
    """For each offset, in order, what each position takes in from there, or zeros; in fp32 or wider."""
    length, first = x.shape[2], smoothing.offsets[0]
    before, after = -first, smoothing.offsets[-1]
    wide = F.pad(x.to(torch.promote_types(x.dtype, torch.float32)), (0, 0, before, after))
    parts = [wide[:, :, start : start + length] for start in range(smoothing.width)]
    if segments is not None:
        ids = F.pad(segments, (before, after), value=-1)
        for start, part in enumerate(parts):
            apart = (segments != ids[:, start : start + length]) | (segments < 0)
            parts[start] = part.masked_fill(apart[:, None, :, None], 0)  # not a product: padding may hold NaN
    return parts


def _numbers(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the device, and in eager mode copied there only once: a captured step must not copy from the host."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _kept_numbers(numbers, dtype, device)


@cache  # a captured CUDA graph reads them for as long as it lives
def _kept_numbers(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # autograd may meet them later
        return torch.tensor(numbers, dtype=dtype, device=device)


def pool_rows(rows: Tensor, smoothing: Smoothing, weight: Callable[[int], Tensor] | None = None) -> Tensor:
    """AP of rows (B, H, T, S): the entry of key j averages those at j + each offset. Entries to leave out must be 0.

    `weight` gives the factor (H, T, S) of what comes from an offset.

    >>> pool_rows(torch.tensor([[[[0.0, 1.0, 2.0, 0.0]]]]), Smoothing(width=2)).flatten()
    tensor([0.0000, 0.5000, 1.5000, 1.0000])
    """
    n_keys, offsets = rows.shape[3], smoothing.offsets
    padded = F.pad(rows, (-offsets[0], offsets[-1]))
    parts = [padded[..., start : start + n_keys] for start in range(smoothing.width)]
    if weight is not None:
        parts = [part * weight(offset) for offset, part in zip(offsets, parts, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / smoothing.width
