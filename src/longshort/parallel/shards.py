"""The part of a tensor that this process holds.

Under FSDP a parameter is a DTensor, whose rows are divided among processes. A slice of it is a copy: changing the slice
in place changes nothing, and raises nothing. What changes a parameter in place therefore takes its `local` part, which
shares the parameter's memory. A tensor that is not sharded is its own local part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether processes hold different parts of the tensor; asked without loading DTensor."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Tensor:
    """The rows of this process, in the tensor's own memory; the tensor itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():  # else it is a view that autograd forbids to change
        return tensor.to_local()


def whole(tensor: Any) -> Tensor:
    """All rows, gathered from the other processes, which must call this too; the tensor itself if it is not sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def shard_group(tensor: Any) -> tuple[dist.ProcessGroup, int, int]:
    """The processes among which the rows of a sharded tensor are divided, this one's place there, and their number."""
    dimension = next(i for i, placement in enumerate(tensor.placements) if placement.is_shard())
    mesh = tensor.device_mesh
    return mesh.get_group(dimension), mesh.get_local_rank(dimension), mesh.size(dimension)


def rows_of(height: int, place: int, places: int) -> tuple[int, int]:
    """First row and number of rows of one of `places` processes: torch.chunk's division, the last ones may have none.

    >>> [rows_of(10, place, 4) for place in range(4)], rows_of(2, 3, 4)
    ([(0, 3), (3, 3), (6, 3), (9, 1)], (2, 0))
    """
    size = -(-height // places)
    first = min(place * size, height)
    return first, min(size, height - first)


def local_rows(values: Tensor, like: Any) -> Tensor:
    """Of `values`, one for each of the first rows of `like`, those of the rows that this process holds of it."""
    if not is_sharded(like):
        return values
    _, place, places = shard_group(like)
    first, count = rows_of(like.shape[0], place, places)
    return values[first : first + count]


def as_shard(tensor: Tensor, like: Any) -> Tensor:
    """The whole tensor, of the shape of `like`, sharded as that is: a copy of this process's rows."""
    if like is None or not is_sharded(like):
        return tensor
    from torch.distributed.tensor import DTensor

    rows = local_rows(tensor, like).to(local(like).device, copy=True)
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, (tensors,), bit for bit the same in all processes; all are sharded alike, or none is."""
    norms = torch.stack([torch.linalg.vector_norm(local(tensor)) for tensor in tensors])
    copies, *others = {_copies(tensor) for tensor in tensors}
    if others:
        raise ValueError(f"tensors must all be sharded alike, or none of them, got copies of {[copies, *others]}")
    if copies is None:
        return norms
    # One reduction over the whole world, so that the copies of an HSDP run agree too: each adds the same squares.
    squares = norms.double().square()
    dist.all_reduce(squares)
    return (squares / copies).sqrt().to(norms.dtype)


def _copies(tensor: Any) -> int | None:
    """How many processes hold each row of a sharded tensor; None if it is not sharded."""
    if not is_sharded(tensor):
        return None
    mesh, placements = tensor.device_mesh, tensor.placements
    return math.prod(mesh.size(i) for i, placement in enumerate(placements) if not placement.is_shard())
