"""The cache of transformers' own decoders that have head plans: near heads keep what they can still see.

`DynamicCache` makes one layer for each of the model's, which keeps every key of every head. A `PlannedLayer` stands in
for it: transformers' own layers again, one for the far heads and one with a sliding window for each shorter reach. The
model still gets keys of every head in full length, zeros where a head has forgotten and cannot look: one layer's keys
at a time are whole. Where a head also sees the first keys, layers with a sliding window of the model's own get full
length too.

Shapes: B batch, H_kv key/value heads, T new tokens, S cached and new ones, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from longshort.heads import HeadPlan

_NOTHING: tuple[type, ...] = tuple(filter(None, [getattr(cache_utils, "DummyLayer", None)]))
"""Layers of a cache that hold nothing."""


def planned_layers(layers: Sequence[Any], plans: Sequence[HeadPlan], in_use: Callable[[], object]) -> list[Any]:
    """The layers of a cache for heads of these plans. Layers that share the keys of others have plans, but nothing in
    the cache: up to transformers 5.22 they are missing at its end, from 5.23 on dummies stand for them. What `in_use`
    returns must stay the same as long as the cache is used.

    If heads of a sliding layer also see the first keys, all sliding layers get full length, because they share a mask.
    """
    own = [layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else None for layer in layers]
    keeps = [not isinstance(layer, _NOTHING) for layer in layers]
    shared = [*(plan for plan, kept in zip(plans, keeps, strict=False) if not kept), *plans[len(layers) :]]
    plans = [_either([plan, *shared], window) for plan, window in zip(plans, own, strict=False)]
    if any(window is not None and plan.firsts is not None for window, plan in zip(own, plans, strict=True)):
        layers = [layer if window is None else DynamicLayer() for layer, window in zip(layers, own, strict=True)]
    return [_planned(layer, plan, in_use) for layer, plan in zip(layers, plans, strict=True)]


def _either(plans: Sequence[HeadPlan], window: int | None) -> HeadPlan:
    """Heads that see what those of any of the plans see, within the model's own window."""
    cut = plans if window is None else [plan.within(window) for plan in plans]
    windows = [None if None in w else max(filter(None, w)) for w in zip(*(plan.windows for plan in cut), strict=True)]
    firsts = map(max, zip(*(plan.first_keys for plan in cut), strict=True))
    return HeadPlan(windows=tuple(windows), firsts=tuple(firsts))


def _planned(layer: Any, plan: HeadPlan, in_use: Callable[[], object]) -> Any:
    """The layer for heads of this plan; itself where no head sees less than the layer keeps."""
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
        return layer
    own = getattr(layer, "sliding_window", None)
    near = (window for window in plan.windows if window is not None and (own is None or window < own))
    return layer if next(near, None) is None else PlannedLayer(layer, plan, in_use)


class PlannedLayer(CacheLayerMixin):
    """One layer of a cache in which each KV head keeps as much as its query heads see.

    Heads that also see the first keys keep everything. As in transformers' sliding layers, `crop` needs
    `activate_past_recording` before it once windows are full.
    """

    supports_early_init = False

    def __init__(self, whole: Any, plan: HeadPlan, in_use: Callable[[], object]) -> None:
        self.whole, self.plan = whole, plan
        self._in_use, self._made_for = in_use, in_use()
        self.parts: list[tuple[list[int], Any]] = []
        """KV heads and the layer that keeps them; empty until the first keys arrive."""
        self._recording = False

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H_kv, T, D); return those of length S, or of the model's own window."""
        if self._in_use() != self._made_for:  # heads may see more now than was kept
            raise ValueError(
                "past_key_values must be made with the head plans and the attention that the model has now, got a "
                "cache from before they changed: start with a new one"
            )
        if not self.parts:
            self._divide(key_states.shape[1])
        length, _ = self.whole.get_mask_sizes(key_states.shape[2])
        if all(layer is not self.whole for _, layer in self.parts):
            self.whole.update(key_states[:, :1, :, :1], value_states[:, :1, :, :1])  # it counts
        kept = [(heads, layer.update(key_states[:, heads], value_states[:, heads])) for heads, layer in self.parts]
        if length == key_states.shape[2]:
            return key_states, value_states
        whole = [x.new_zeros(*x.shape[:2], length, x.shape[3]) for x in (key_states, value_states)]
        for heads, states in kept:
            for out, x in zip(whole, states, strict=True):
                seen = x[:, :, -length:]
                out[:, heads, length - seen.shape[2] :] = seen
        return whole[0], whole[1]

    def _divide(self, n_kv_heads: int) -> None:
        own = getattr(self.whole, "sliding_window", None)
        reaches = zip(self.plan.kv_windows(n_kv_heads), self.plan.kv_firsts(n_kv_heads), strict=True)
        groups: dict[int | None, list[int]] = {}
        for head, (window, first) in enumerate(reaches):
            far = window is None or first or (own is not None and window >= own)
            groups.setdefault(None if far else max(window or 0, 2), []).append(head)  # a window of 1 would keep all
        for window, heads in groups.items():
            self.parts.append((heads, self.whole if window is None else DynamicSlidingWindowLayer(window)))
        self.record_past = self._recording

    @property
    def _layers(self) -> list[Any]:
        """Each once, the one that counts among them."""
        return [self.whole, *(layer for _, layer in self.parts if layer is not self.whole)]

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values held."""
        return sum(x.nbytes for layer in self._layers for x in (layer.keys, layer.values) if x is not None)

    @property
    def record_past(self) -> bool:
        return self._recording

    @record_past.setter
    def record_past(self, wanted: bool) -> None:
        self._recording = wanted
        for layer in self._layers:
            if hasattr(layer, "record_past"):
                layer.record_past = wanted

    def activate_past_recording(self) -> None:
        """From now on `crop` can remove all tokens since the last `crop`."""
        self.record_past = True

    def _of_whole(name: str) -> Any:  # type: ignore[misc]
        return property(lambda self: getattr(self.whole, name))

    keys, values, is_initialized, is_sliding, is_croppable = map(
        _of_whole, ("keys", "values", "is_initialized", "is_sliding", "is_croppable")
    )

    def get_seq_length(self) -> int:
        return self.whole.get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.whole.get_mask_sizes(query_length)

    def get_max_length(self) -> int:
        return self.whole.get_max_length()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: each part begins with the first keys."""

    def _by_each(name: str) -> Any:  # type: ignore[misc]
        def method(self: PlannedLayer, *args: Any) -> None:
            for layer in self._layers:
                getattr(layer, name)(*args)

        return method

    offload, prefetch, reset, reorder_cache, crop, batch_repeat_interleave, batch_select_indices = map(
        _by_each,
        ("offload", "prefetch", "reset", "reorder_cache", "crop", "batch_repeat_interleave", "batch_select_indices"),
    )
