"""One decoding step: new tokens join a cache of fixed size and attend over it. The call, its schemas and fakes.

For `nn.static_cache`, not for users. Everything that changes from step to step is on the device, so that a step can be
captured in a CUDA graph or compiled. `plain` computes it in PyTorch, `launch` in one launch of a Triton kernel.

Shapes: B batch, H query heads, H_kv key/value heads, T new tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.ops.api import LogitStats, chosen_backend
from longshort.ops.decode.layout import HeadLayout, results_of
from longshort.ops.options import SCHEMA, Options, Stats, extremes_of

_HOMES = {"plain_decode": "longshort.ops.decode.plain", "triton_decode": "longshort.ops.decode.launch"}
_library = torch.library.Library("longshort", "FRAGMENT")
_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, Tensor length, Tensor? segments, "
    "Tensor(c!) tickets"
)


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    segments: Tensor | None,
    tickets: Tensor,
    layout: tuple[HeadLayout, ...],
    plan: HeadPlan,
    *,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    begins: Tensor | None = None,
    stats: Stats = False,
    backend: str = "auto",
) -> tuple[Tensor, LogitStats | None]:
    """Write k and v (B, H_kv, T, D) into the cache and attend from q (B, H, T, D) over all that each head sees.

    Args:
        keys, values: flat storage; written in place.
        length: (1,) int64, number of positions held before this call.
        segments: (B, columns) int64 for all positions, the new ones included; a negative id is padding.
        tickets: at least B * H_kv int32, zero before and after, for the kernel's own use by one launch at a time.
        sinks: (H,) fp32, as in `attention`.
        begins: (B, T) int64, where the documents of the new tokens begin; 0 if None. Only first keys need it.
        layout: that of each KV head. A ring must have room for everything that any of the T tokens sees.
        backend: as in `attention`; every backend but Triton means the plain form.
    """
    ops, extremes = torch.ops.longshort, extremes_of(stats)
    op = ops.triton_decode if chosen_backend(backend, q) == "triton" else ops.plain_decode
    numbers = [number for head in layout for number in head]
    options = Options.of(plan, softcap=softcap)
    out, high, low = op(q, k, v, keys, values, length, segments, tickets, numbers, *options, extremes, sinks, begins)
    return out, LogitStats(high, low if extremes == 2 else None) if extremes else None


def _implemented(home: str) -> Callable[..., Any]:
    def step(*arguments: Any) -> Any:
        *tensors, layout = arguments[:9]
        count = len(Options._fields)
        options, extremes = arguments[9 : 9 + count], arguments[9 + count]
        sinks, begins = (*arguments, None, None)[10 + count : 12 + count]
        return import_module(home).decode(*tensors, tuple(layout), Options.received(*options), extremes, sinks, begins)

    return step


def _fake(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return results_of(q, rest[8 + len(Options._fields)])


for _name, _home in _HOMES.items():
    _library.define(
        f"{_name}({_TENSORS}, int[] layout, {SCHEMA}, int extremes, Tensor? sinks=None, Tensor? begins=None)"
        " -> (Tensor out, Tensor logit_max, Tensor logit_min)"
    )
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _implemented(_home), _device)
    torch.library.register_fake(f"longshort::{_name}", _fake, lib=_library)
