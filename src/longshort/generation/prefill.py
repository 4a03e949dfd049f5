"""Prefill of long prompts by several processes, each of which then has the whole cache and decodes on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longshort.model import GPT
from longshort.nn import KVCache
from longshort.nn.attention import attention_layers
from longshort.ops.shares import largest_group

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@torch.no_grad()
def shared_prefill(
    model: GPT,
    tokens: Tensor,
    cache: KVCache,
    group: ProcessGroup,
    *,
    segments: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Take a prompt into an empty cache, its positions shared by the ranks of `group`; the logits (B, V) after it.

    Every rank calls it with the same prompt, and gets the same cache: local heads have what they can still see, global
    ones everything. The ranks share equally; what does not divide, and at least the last token, each computes itself.

    Args:
        model: in evaluation mode, whole on each rank.
        tokens: (B, P), the whole prompt.
        cache: from `model.new_cache`.
        segments, positions: (B, P) as in `GPT.forward`, of the whole prompt.
    """
    length, size = tokens.shape[1], group.size()
    share = (length - 1) // size
    if share < 1:
        raise ValueError(f"tokens must have more positions than the group has ranks, {size}, got {length}")
    most = next(ranks for ranks in range(size, 0, -1) if _fits(model, length, ranks))
    if size > most:
        raise ValueError(
            f"group must have at most {most} ranks for a prompt of {length} tokens, got {size}: a window must not "
            f"reach past the {share} tokens of the rank before; fewer ranks or a longer prompt would fit"
        )
    whole = {"tokens": tokens, "segments": segments, "positions": positions}
    given = {name: x for name, x in whole.items() if x is not None}
    own = slice(group.rank() * share, (group.rank() + 1) * share)
    model.share_sequences(group)
    try:
        model(**{name: x[:, own] for name, x in given.items()}, cache=cache, return_logits=False)
    finally:
        model.share_sequences(None)
    rest = {name: x[:, share * size :] for name, x in given.items()}
    logits = model(**rest, cache=cache, last_logits=1).logits
    assert logits is not None
    return logits[:, -1]


def _fits(model: GPT, length: int, ranks: int) -> bool:
    """Whether so many ranks can share a prompt."""
    total = (length - 1) // ranks * ranks
    layers = attention_layers(model)
    return all(largest_group(layer.plan, layer.n_kv_heads, total, layer.smoothing) >= ranks for layer in layers)
