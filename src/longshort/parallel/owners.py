"""Whole matrices out of shards, each in one process: for work that needs all rows and should be done once.

Of a batch of up to N parameters of one shape, sharded over N processes, process i owns the i-th: it receives all its
rows, computes, and sends the rows of the result back. Each way is one all-to-all, in which a process sends what it
holds, and no process holds more than one whole matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from longshort.parallel.shards import rows_of, shard_group

Other = TypeVar("Other")


def batches_of_equal_shards(items: Sequence[tuple[Any, Other]]) -> Iterator[list[tuple[Any, Other]]]:
    """The sharded tensors, each with something else, in batches of one shape and mesh: at most one per process."""
    for _, found in groupby(sorted(items, key=_kind), key=_kind):
        equal = list(found)
        _, _, places = shard_group(equal[0][0])
        for first in range(0, len(equal), places):
            yield equal[first : first + places]


def _kind(item: tuple[Any, Any]) -> tuple[tuple[int, ...], str]:
    return tuple(item[0].shape), str(item[0].dtype)


def place_of(tensor: Any) -> int:
    """This process's place among those that share the tensor: the number of the parameter of a batch that it owns."""
    return shard_group(tensor)[1]


def gather_to_owners(shards: Sequence[Tensor], *, like: Any) -> Tensor | None:
    """The whole of the tensor that this process owns, given its own rows of each; None if it owns none."""
    group, place, places = shard_group(like)
    height, width = like.shape
    mine = shards[0].shape[0] * width
    counts = [rows_of(height, other, places)[1] * width for other in range(places)]
    owns = place < len(shards)
    received = shards[0].new_empty(height * width if owns else 0)
    dist.all_to_all_single(
        received,
        torch.cat([shard.reshape(-1) for shard in shards]),
        counts if owns else [0] * places,
        [mine if other < len(shards) else 0 for other in range(places)],
        group=group,
    )
    return received.view(height, width) if owns else None


def scatter_from_owners(whole: Tensor | None, shards: Sequence[Tensor], *, like: Any) -> tuple[Tensor, ...]:
    """The inverse of `gather_to_owners`: this process's rows of each, in the shapes of `shards`."""
    group, _, places = shard_group(like)
    height, width = like.shape
    mine = shards[0].shape[0] * width
    counts = [rows_of(height, other, places)[1] * width for other in range(places)]
    received = shards[0].new_empty(mine * len(shards))
    dist.all_to_all_single(
        received,
        shards[0].new_empty(0) if whole is None else whole.reshape(-1).to(received),
        [mine if other < len(shards) else 0 for other in range(places)],
        [0] * places if whole is None else counts,
        group=group,
    )
    return tuple(part.view_as(shard) for part, shard in zip(received.split([mine] * len(shards)), shards, strict=True))
