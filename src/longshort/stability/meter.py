"""The logit statistics of one optimizer step: per layer and head, over its micro-batches and all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class LogitMeter:
    """Collects the statistics that `GPT` returns: (L, H, 2), the largest and smallest logit of each head, or with
    stats="max" (L, H, 1), the largest alone.

    Taking extremes is idempotent, so accumulation and recomputation are safe. A NaN stays visible, also across ranks.

    >>> meter = LogitMeter()
    >>> meter.update(torch.tensor([[[1.0, -2.0], [3.0, 0.0]]]))
    >>> meter.update(torch.tensor([[[2.0, -1.0], [1.0, -5.0]]]))
    >>> largest, smallest = meter.read()
    >>> largest.tolist(), smallest.tolist()
    ([[2.0, 3.0]], [[-2.0, -5.0]])
    """

    def __init__(self) -> None:
        self._extremes: Tensor | None = None  # (L, H, 2 or 1): largest, and minus the smallest

    def update(self, stats: Tensor) -> None:
        """Take in the statistics of one forward pass."""
        mine = torch.cat((stats[..., :1], -stats[..., 1:]), dim=-1).detach()
        if self._extremes is None:
            self._extremes = mine
            return
        if mine.shape != self._extremes.shape:
            raise ValueError(
                f"stats must have the shape of those before it since the meter was last read, "
                f"{tuple(self._extremes.shape)}, got {tuple(mine.shape)}"
            )
        self._extremes = torch.maximum(self._extremes, mine)

    def read(self, *, across_ranks: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the largest and smallest logits, (L, H) each, and reset; one packed reduction across ranks.

        The smallest are None if they were not measured.
        """
        if self._extremes is None:
            raise RuntimeError('the meter has seen no forward pass with stats=True or "max" since it was last read')
        extremes, self._extremes = self._extremes, None
        if across_ranks:
            # MAX drops NaN on some backends, so NaN is sent as a flag beside the numbers.
            broken = extremes.isnan()
            packed = torch.cat((extremes.masked_fill(broken, -torch.inf), broken.to(extremes.dtype)))
            dist.all_reduce(packed, op=dist.ReduceOp.MAX)
            extremes, broken = packed.chunk(2)
            extremes = extremes.masked_fill(broken > 0, torch.nan)
        return extremes[..., 0], -extremes[..., 1] if extremes.shape[-1] == 2 else None
