"""What a model asks of other ranks, besides attention, when processes share a sequence: see `GPT.share_sequences`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longshort.nn.norms import SequenceBatchNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def check_shareable(model: nn.Module) -> None:
    """Raise where something besides attention looks along the sequence."""
    if any(isinstance(module, SequenceBatchNorm) for module in model.modules()):
        raise ValueError("norm must be layer or rms in a model that shares sequences among processes, got batch")


def whole_rows(x: Tensor, group: ProcessGroup) -> Tensor:
    """(B, N T) of each rank's (B, T)."""
    from longshort.ops.collectives import gathered

    return gathered(x, group).unflatten(0, (group.size(), -1)).transpose(0, 1).flatten(1)


def own_rows(x: Tensor, group: ProcessGroup) -> Tensor:
    """The (B, T) of this rank, of (B, N T)."""
    return x.chunk(group.size(), dim=1)[group.rank()]


def mean_over_ranks(mean: Tensor, count: Tensor, group: ProcessGroup) -> Tensor:
    """The mean over all ranks' elements of each rank's mean over its `count` elements, of which there may be none.

    Its gradient is that of the sum of all ranks' losses, N times the mean's: averaging over the ranks undoes it.
    """
    from longshort.ops.collectives import gathered

    mine = torch.stack((mean * count, count.to(mean.dtype)))
    total, counted = gathered(mine[None], group).sum(0).unbind()
    return total / counted.clamp_min(1)
