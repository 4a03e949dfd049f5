"""How a model's heads are divided among vLLM's attention layers, and what vLLM cannot compute.

vLLM gives an attention layer one window, and layers of one window blocks of their own, which it frees as they leave the
window. So the heads of a layer that reach equally far become a layer to vLLM: a sublayer here. Pure Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from longshort.heads import HeadPlan
from longshort.model import GPTConfig

_Windows = tuple[int | None, ...]
"""Reach of each query head of a KV head, the furthest first."""


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """Heads of one layer that vLLM treats as a layer."""

    name: str
    """Its own in its layer: far_0, near64_0, or near64_0_near16 for one that reads what near64_0 keeps."""
    window: int | None
    """Keys that its queries see, the current one included; None sees everything."""
    kv_heads: tuple[int, ...]
    """Key/value heads, as the layer counts them."""
    heads: tuple[int, ...]
    """Query heads; the first of them share the first KV head, and so on."""
    reads: str | None = None
    """The sublayer whose keys and values it reads, where query heads of one KV head have several windows."""


def divide(config: GPTConfig) -> tuple[tuple[Sublayer, ...], ...]:
    """The sublayers of each layer; a ValueError names what vLLM does not serve.

    vLLM's blocks have one size in bytes. A sublayer with fewer KV heads gets blocks of more tokens if its number of
    heads divides the largest one, and padded blocks otherwise; so sublayers are cut until it does. The largest is one
    of local heads: their blocks then have the fewest tokens, and little is kept beyond a window.

    >>> config = GPTConfig(vocab_size=9, context=64, n_layers=1, width=64, n_heads=8, n_global=3, window=16)
    >>> [(sub.name, sub.kv_heads) for sub in divide(config)[0]]
    [('far_0', (0,)), ('far_1', (1,)), ('far_2', (2,)), ('near16_0', (3, 4, 5, 6, 7))]
    """
    refuse(config)
    n_kv_heads = config.n_kv_heads or config.n_heads
    layers = [_alike(plan, n_kv_heads) for plan in config.layer_plans]
    near = [len(kv_heads) for layer in layers for windows, kv_heads in layer.items() if windows[0] is not None]
    largest = max(near, default=n_kv_heads)
    divided = []
    for plan, layer in zip(config.layer_plans, layers, strict=True):
        sublayers: list[Sublayer] = []
        for windows, kv_heads in layer.items():
            size = gcd(len(kv_heads), largest)
            for first in range(0, len(kv_heads), size):
                taken = {sub.name for sub in sublayers}
                sublayers += _reading_together(plan, windows, kv_heads[first : first + size], n_kv_heads, taken)
        divided.append(tuple(sublayers))
    return tuple(divided)


def refuse(config: GPTConfig) -> None:
    """Raise a ValueError for a model that vLLM cannot compute, with the reason."""
    for layer, plan in enumerate(config.layer_plans):
        if plan.decays is not None:
            raise ValueError(_refusal(layer, "decays (LaS)", "its logits have no factor that falls with distance"))
        if plan.firsts is not None:
            raise ValueError(_refusal(layer, "first keys (streaming heads)", "it frees all that left a window"))
    if config.smoothing is not None and config.smoothing > 1:
        raise ValueError(
            f"smoothing must be None for vLLM, got {config.smoothing}: its cache has no place for the unsmoothed values"
        )
    if config.attention_chunk is not None:
        raise ValueError(
            f"attention_chunk must be None for vLLM, got {config.attention_chunk}: give the heads windows, which it "
            "serves"
        )


def _refusal(layer: int, what: str, why: str) -> str:
    return f"the plan of layer {layer} has {what}, which vLLM does not serve: {why}; use longshort generate"


def _alike(plan: HeadPlan, n_kv_heads: int) -> dict[_Windows, list[int]]:
    """The KV heads whose query heads have the same windows, those that reach furthest first."""
    group = plan.n_heads // n_kv_heads
    alike: dict[_Windows, list[int]] = {}
    for kv_head in range(n_kv_heads):
        windows = plan.windows[kv_head * group : (kv_head + 1) * group]
        alike.setdefault(tuple(sorted(windows, key=_furthest_first)), []).append(kv_head)
    return dict(sorted(alike.items(), key=lambda item: [_furthest_first(window) for window in item[0]]))


def _furthest_first(window: int | None) -> float:
    return float("-inf") if window is None else -window


def _reading_together(
    plan: HeadPlan, windows: _Windows, kv_heads: list[int], n_kv_heads: int, taken: set[str]
) -> Iterator[Sublayer]:
    """A sublayer that keeps the keys and values of these KV heads, and one more for each shorter window over them."""
    group = plan.n_heads // n_kv_heads
    number = sum(name.startswith(f"{_reach(windows[0])}_") for name in taken)
    keeper = f"{_reach(windows[0])}_{number}"
    for window in dict.fromkeys(windows):
        shorter = window != windows[0]
        sharing = (head for kv_head in kv_heads for head in range(kv_head * group, (kv_head + 1) * group))
        yield Sublayer(
            name=f"{keeper}_{_reach(window)}" if shorter else keeper,
            window=window,
            kv_heads=tuple(kv_heads),
            heads=tuple(head for head in sharing if plan.windows[head] == window),
            reads=keeper if shorter else None,
        )


def _reach(window: int | None) -> str:
    return "far" if window is None else f"near{window}"
