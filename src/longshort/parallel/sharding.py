"""FSDP2 over a model's blocks and the rest of it: each process holds its share of weights, gradients and moments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

FORWARD_METHODS = ("hidden", "scores")
"""Methods besides `forward` that evaluation calls on a model: they gather its weights too."""


def shard(model: Any, mesh: Any, *, parameters: torch.dtype | None, reduce: torch.dtype, reshard: bool) -> None:
    """Shard the model in place over the mesh; one of two dimensions is (copies, shards).

    Args:
        model: has `blocks`, each of which is gathered by itself; may be on the host, from where one block after the
            other moves to the mesh's device, so that it never holds the whole model.
        mesh: from `build_mesh`.
        parameters: dtype of the gathered weights, in which the model computes; their own if None.
        reduce: dtype in which gradients are summed over processes.
        reshard: free the gathered weights of a block after its forward pass and gather them again in the backward
            pass: less memory, half as much sent again.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    policy = MixedPrecisionPolicy(param_dtype=parameters, reduce_dtype=reduce)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)  # needed first in the backward pass
    for name in FORWARD_METHODS:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


@contextmanager
def gathered_only_within(model: nn.Module) -> Iterator[None]:
    """At the end of the block, free what forward passes without a backward pass gathered and kept."""
    try:
        yield
    finally:
        for module in model.modules():
            if (reshard := getattr(module, "reshard", None)) is not None:
                reshard()
