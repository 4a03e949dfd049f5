"""How a model's heads are divided among vLLM's attention layers, and what vLLM cannot compute.

vLLM gives an attention layer one window, and a group of layers blocks of its own, which it frees as they leave the
window. So the KV heads of a layer that reach equally far become a layer to vLLM: a sublayer here. Pure Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from longshort.heads import HeadPlan
from longshort.model import GPTConfig


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """Heads of one layer that vLLM treats as a layer."""

    name: str
    """far_0, near64_0: how far its heads reach, and its number among those of its layer that reach as far."""
    window: int | None
    """Keys that its queries see, the current one included; None sees everything."""
    kv_heads: tuple[int, ...]
    """Key/value heads, as the layer counts them."""
    heads: tuple[int, ...]
    """Query heads; the first of them share the first KV head, and so on."""


def divide(config: GPTConfig) -> tuple[tuple[Sublayer, ...], ...]:
    """The sublayers of each layer; a ValueError names what vLLM does not serve.

    vLLM's blocks have one size in bytes. A sublayer with fewer KV heads gets blocks of more tokens, where its number
    of heads divides the largest, and padded blocks otherwise; so sublayers are cut until it does. The largest is one of
    local heads: their blocks are then the shortest, and little is kept beyond a window.

    >>> config = GPTConfig(vocab_size=9, context=64, n_layers=1, width=64, n_heads=8, n_global=3, window=16)
    >>> [(sub.name, sub.kv_heads) for sub in divide(config)[0]]
    [('far_0', (0,)), ('far_1', (1,)), ('far_2', (2,)), ('near16_0', (3, 4, 5, 6, 7))]
    """
    refuse(config)
    n_kv_heads = config.n_kv_heads or config.n_heads
    layers = [_by_window(plan, n_kv_heads) for plan in config.layer_plans]
    near = [len(heads) for layer in layers for window, heads in layer.items() if window is not None]
    largest = max(near, default=n_kv_heads)
    group = config.n_heads // n_kv_heads
    return tuple(
        tuple(sub for window, heads in layer.items() for sub in _cut(window, heads, gcd(len(heads), largest), group))
        for layer in layers
    )


def refuse(config: GPTConfig) -> None:
    """Raise a ValueError for a model that vLLM cannot compute, with the reason."""
    for layer, plan in enumerate(config.layer_plans):
        if plan.decays is not None:
            raise ValueError(_refusal(layer, "decays (LaS)", "its kernels have no factor of the logits that falls"))
        if plan.firsts is not None:
            raise ValueError(_refusal(layer, "first keys (streaming heads)", "its windows have no keys besides them"))
        _refuse_mixed_groups(plan, config.n_kv_heads or config.n_heads, layer)
    if config.smoothing is not None and config.smoothing > 1:
        raise ValueError(f"smoothing must be None for vLLM, got {config.smoothing}: its cache holds no smoothed values")
    if config.attention_chunk is not None:
        raise ValueError(f"attention_chunk must be None for vLLM, got {config.attention_chunk}: give the heads windows")


def _refuse_mixed_groups(plan: HeadPlan, n_kv_heads: int, layer: int) -> None:
    group = plan.n_heads // n_kv_heads
    for kv_head, window in enumerate(plan.kv_windows(n_kv_heads)):
        windows = plan.windows[kv_head * group : (kv_head + 1) * group]
        if set(windows) != {window}:
            raise ValueError(
                _refusal(layer, f"windows {windows} over one KV head", "query heads that share keys have one window")
            )


def _refusal(layer: int, what: str, why: str) -> str:
    return f"plan of layer {layer} has {what}, which vLLM does not serve: {why}"


def _by_window(plan: HeadPlan, n_kv_heads: int) -> dict[int | None, list[int]]:
    """The KV heads of each reach, the far ones first."""
    heads: dict[int | None, list[int]] = {}
    for kv_head, window in enumerate(plan.kv_windows(n_kv_heads)):
        heads.setdefault(window, []).append(kv_head)
    return dict(sorted(heads.items(), key=lambda item: -(item[0] or 2**31)))


def _cut(window: int | None, kv_heads: list[int], size: int, group: int) -> list[Sublayer]:
    reach = "far" if window is None else f"near{window}"
    parts = [kv_heads[i : i + size] for i in range(0, len(kv_heads), size)]
    return [
        Sublayer(
            name=f"{reach}_{number}",
            window=window,
            kv_heads=tuple(part),
            heads=tuple(head for kv_head in part for head in range(kv_head * group, (kv_head + 1) * group)),
        )
        for number, part in enumerate(parts)
    ]
