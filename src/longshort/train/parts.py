"""What the parts of a step count for: its loss is the mean over all its targets, however they are divided."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from longshort.data.tasks.examples import IGNORED
from longshort.train.machine.distributed import World


def part_weights(targets: Sequence[Tensor], world: World, group: dist.ProcessGroup | None = None) -> Tensor:
    """The weight of each part of this rank's sequences: its mean loss times that, added up over the parts and averaged
    over the ranks, is the mean over all targets of the step. Ranks of `group` hold their sequences together.

    >>> alone = World(0, 1, torch.device("cpu"))
    >>> part_weights([torch.tensor([[5, -100, -100]]), torch.tensor([[7, 8, 9]])], alone).tolist()
    [0.25, 0.75]
    """
    counts = torch.stack([(part != IGNORED).sum() for part in targets]).float()
    if group is not None:
        dist.all_reduce(counts, group=group)
    return counts / world.mean(counts.sum()).clamp_min(1 / world.size)  # without any target all losses are 0
