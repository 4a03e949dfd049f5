"""The logits of every head in any model that contains `LSAttention`, without a change to the model's code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from longshort.nn.attention import attention_layers
from longshort.ops import LogitStats
from longshort.ops.options import Stats, extremes_of


@contextmanager
def watch_logits(model: nn.Module, *, stats: Stats = True) -> Iterator[dict[int, LogitStats]]:
    """Extremes of each head's logits over the enclosed forward passes, by layer, in the order of `model.modules()`.

    The op measures them as it runs, without hooks, so a compiled model can be watched too; it compiles once more.
    A layer that has not run has -inf as its largest logit. With stats="max" only the largest logits are measured.

    >>> from longshort import HeadPlan, LSAttention
    >>> plan = HeadPlan.long_short(n_heads=4, n_global=1, window=16)
    >>> model = nn.Sequential(LSAttention(64, plan), nn.Linear(64, 64), LSAttention(64, plan))
    >>> with watch_logits(model) as seen:
    ...     _ = model(torch.randn(2, 50, 64))
    >>> seen[1].abs_max.shape
    torch.Size([4])
    """
    if not extremes_of(stats):
        raise ValueError(f'stats must be True or "max" to watch the logits, got {stats!r}')
    layers = attention_layers(model)
    if not layers:
        raise ValueError(f"model must have an LSAttention layer, got a {type(model).__name__} without one")
    if any(layer.watched is not None for layer in layers):
        raise ValueError("model must not be watched already, got one inside another watch_logits")
    for layer in layers:
        device = layer.out.weight.device
        largest = torch.full((layer.n_heads,), -torch.inf, dtype=torch.float32, device=device)
        layer.watched = LogitStats(largest, -largest if stats is True else None)
    try:
        yield {index: layer.watched for index, layer in enumerate(layers) if layer.watched is not None}
    finally:
        for layer in layers:
            layer.watched = None
