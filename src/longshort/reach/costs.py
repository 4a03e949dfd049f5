"""What a reach costs: keys that a token sees, bytes of cache, and FLOPs of attention, beside full attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longshort.heads import HeadPlan
from longshort.ranges import AT_LEAST_1
from longshort.reach.layer import LayerReach


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the attention of a model costs per token, on the average over a sequence of `context` tokens."""

    visible_keys: float
    """Keys that a head sees, on the average over heads."""
    full_visible_keys: float
    """The same with full attention, as in the other fields that begin with full."""
    cache_bytes: float
    """Keys and values of all layers that a cache holds after the last token, divided by the tokens."""
    full_cache_bytes: float
    flops: float
    """Queries times keys and probabilities times values, of all layers, forward alone."""
    full_flops: float

    @property
    def share(self) -> float:
        """Attention FLOPs, and so visible keys, as a share of full attention's."""
        return self.flops / self.full_flops

    @property
    def cache_share(self) -> float:
        """Bytes of cache as a share of full attention's."""
        return self.cache_bytes / self.full_cache_bytes


def costs(
    layers: Sequence[LayerReach],
    *,
    context: int,
    n_kv_heads: int | None = None,
    head_dim: int = 1,
    value_bytes: int = 2,
    causal: bool = True,
) -> Costs:
    """What these layers cost at a context; `value_bytes` is the size of a cached number, 2 for bf16.

    With `causal=False` tokens see keys after them too, as in classifiers; what is said of a cache has no meaning then.

    >>> from longshort.reach.patterns import ladder
    >>> round(costs(ladder(n_layers=8, n_heads=8), context=2048).share, 3)
    0.239
    """
    if not layers:
        raise ValueError("layers must have at least one LayerReach, got none")
    check_sizes(context=context, head_dim=head_dim, value_bytes=value_bytes)
    kv_heads = layers[0].n_heads if n_kv_heads is None else n_kv_heads
    heads = sum(layer.n_heads for layer in layers)
    seen = sum(plan_visible(layer.plan, context, causal=causal) for layer in layers)
    most = mean_visible(None, context, causal=causal)
    held = [
        reach
        for plan in (layer.plan for layer in layers)
        for reach in zip(plan.kv_windows(kv_heads), plan.kv_firsts(kv_heads), strict=True)
    ]
    kept = sum(context if window is None else min(window + first, context) for window, first in held) / context
    return Costs(
        visible_keys=seen / heads,
        full_visible_keys=most,
        cache_bytes=2 * head_dim * value_bytes * kept,
        full_cache_bytes=2.0 * head_dim * value_bytes * len(held),
        flops=4 * head_dim * seen,
        full_flops=4 * head_dim * most * heads,
    )


def check_sizes(**sizes: int) -> None:
    """Raise if one of the sizes is no integer from 1."""
    for name, value in sizes.items():
        AT_LEAST_1.check(name, value)


def plan_visible(plan: HeadPlan, length: int, *, causal: bool = True) -> float:
    """Keys that a query sees, averaged over a sequence and summed over the heads of a plan."""
    heads = zip(plan.windows, plan.first_keys, strict=True)
    return sum(mean_visible(window, length, first, causal=causal) for window, first in heads)


def mean_visible(window: int | None, length: int, first: int = 0, *, causal: bool = True) -> float:
    """Keys that a query sees, averaged over a sequence; windows, first keys and causality are counted exactly.

    >>> mean_visible(None, 3), mean_visible(2, 3), mean_visible(1, 4, 2)
    (2.0, 1.6666666666666667, 2.25)
    >>> mean_visible(None, 3, causal=False), mean_visible(2, 3, causal=False)
    (3.0, 2.3333333333333335)
    """
    w = length if window is None else min(window, length)
    beyond = length - w  # the n-th of these queries has n keys before its window
    within, kept = w * (w + 1) / 2 + beyond * w, min(first, beyond)
    before = within + kept * (kept + 1) / 2 + (beyond - kept) * kept
    if causal:
        return before / length
    ahead = max(min(first, length) - w, 0)  # of the queries at the start, the n-th from the last has n keys ahead
    return (before + within - length + ahead * (ahead + 1) / 2) / length
