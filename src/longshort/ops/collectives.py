"""What processes send to each other inside of the op: differentiable, traced by torch.compile, and nothing else.

PyTorch's functional collectives under one set of names: those of 2.13 where it has them, the older ones before.
Every rank of a group must make the same calls in the same order; the backward pass then does so too, as long as
every rank uses what it receives, were it empty.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

_all_gather = getattr(functional, "all_gather_single_autograd", None) or functional.all_gather_tensor_autograd


def gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(N size, ...) of (size, ...): every rank's x, one after another. The gradient of x is summed over the ranks."""
    return _all_gather(x.contiguous(), 0, group)


def exchanged(sent: Mapping[int, Tensor], counts: Mapping[int, int], like: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send a tensor to each rank in `sent`; return what comes in, flat, in the order of the ranks it comes from.

    Args:
        counts: how many elements come from each rank.
        like: what is sent are parts of it; a rank that sends nothing is tied to the others' gradients by it.
    """
    ranks = range(dist.get_world_size(group))
    parts = [sent[rank].flatten() for rank in ranks if rank in sent]
    flat = torch.cat([like[:0].flatten(), *parts])
    into = [sent[rank].numel() if rank in sent else 0 for rank in ranks]
    return functional.all_to_all_single_autograd(flat, [counts.get(rank, 0) for rank in ranks], into, group)


@torch.no_grad()
def rows_from_all(x: Tensor, start: int, stop: int, group: dist.ProcessGroup) -> Tensor:
    """(B, H, stop - start, D) of (B, H, T, D): positions of the whole sequence, sent by the ranks that hold them."""
    length, parts = x.shape[2], []
    for rank in range(dist.get_world_size(group)):
        first, last = max(start - rank * length, 0), min(stop - rank * length, length)
        if first < last:
            part = x[:, :, first:last].clone(memory_format=torch.contiguous_format)
            if part.numel():
                dist.broadcast(part, group=group, group_src=rank)
            parts.append(part)
    return torch.cat(parts, dim=2)


def largest(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The elementwise maximum over the ranks; NaN where one of them has it. Not differentiable."""
    x = x.detach()
    broken = x.isnan()  # MAX drops NaN on some backends, so NaN is sent as a flag beside the numbers
    packed = torch.cat((x.masked_fill(broken, -torch.inf), broken.to(x.dtype)))
    found, flags = functional.all_reduce(packed, "max", group).chunk(2)
    return found.masked_fill(flags > 0, torch.nan)
