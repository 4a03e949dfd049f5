"""Blocks whose activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def recomputed(block: nn.Module, x: Tensor, *, keep_attention: bool = False, **options: Any) -> Any:
    """block(x, **options), computed again in the backward pass; with `keep_attention`, all but attention's outputs.

    They take the longest to compute in long sequences.
    """
    if keep_attention:
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(block, x, use_reentrant=False, **options)


def _policy(context: Any, op: Any, *args: Any, **options: Any) -> CheckpointPolicy:
    ours = getattr(op, "namespace", None) == "longshort" and op._opname.endswith("_forward")
    return CheckpointPolicy.MUST_SAVE if ours else CheckpointPolicy.PREFER_RECOMPUTE
