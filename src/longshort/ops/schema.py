"""torch.library schemas, fakes and autograd of our backends: each has one opaque forward op and one backward op.

They are opaque so that torch.compile neither traces the blocks nor recompiles when the length crosses a window.
Statistics are outputs, never hooks, which compile would drop. Backends are imported when first called.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from longshort.ops.options import SCHEMA, Options

HOMES = {"blocked": "longshort.ops.blocked", "triton": "longshort.ops.triton"}
"""Modules with forward(q, k, v, options, segments, stats) and backward(grad, q, k, v, out, lse, options, segments)."""
_library = torch.library.Library("longshort", "DEF")


def run(
    backend: str, q: Tensor, k: Tensor, v: Tensor, options: Options, segments: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, and the extremes of the logits ((0,) each unless `stats`)."""
    forward = torch.ops.longshort.blocked_forward if backend == "blocked" else torch.ops.longshort.triton_forward
    result: tuple[Tensor, Tensor, Tensor, Tensor] = forward(q, k, v, *options, segments, stats)
    return result


def _forward(home: str) -> Callable[..., Any]:
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        *options, segments, stats = rest
        return import_module(home).forward(q, k, v, Options.received(*options), segments, stats)

    return forward


def _backward(home: str) -> Callable[..., Any]:
    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Any:
        *options, segments = rest
        return import_module(home).backward(grad, q, k, v, out, lse, Options.received(*options), segments)

    return backward


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stats = rest[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    extremes = [q.new_empty(q.shape[1] if stats else 0, dtype=torch.float32) for _ in range(2)]
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide), extremes[0], extremes[1]


def _backward_fake(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    q, k, v, *options, segments, _ = inputs
    out, lse, logit_max, logit_min = output
    ctx.mark_non_differentiable(lse, logit_max, logit_min)
    ctx.save_for_backward(q, k, v, out, lse, segments)
    ctx.options = options


def _derivative(backend: str) -> Callable[..., tuple[Tensor | None, ...]]:
    def differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, segments = ctx.saved_tensors
        backward = getattr(torch.ops.longshort, f"{backend}_backward")
        grads = backward(grad, q, k, v, out, lse, *ctx.options, segments)
        return (*grads, *(None,) * (len(ctx.options) + 2))

    return differentiate


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError('attention has no double backward in this backend; backend="reference" has one')


def _register(backend: str, home: str) -> None:
    forward, backward = f"{backend}_forward", f"{backend}_backward"
    _library.define(
        f"{forward}(Tensor q, Tensor k, Tensor v, {SCHEMA}, Tensor? segments, bool stats)"
        " -> (Tensor out, Tensor lse, Tensor logit_max, Tensor logit_min)"
    )
    _library.define(
        f"{backward}(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {SCHEMA}, Tensor? segments)"
        " -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)"
    )
    for device in ("CPU", "CUDA"):
        _library.impl(forward, _forward(home), device)
        _library.impl(backward, _backward(home), device)
    torch.library.register_fake(f"longshort::{forward}", _forward_fake, lib=_library)
    torch.library.register_fake(f"longshort::{backward}", _backward_fake, lib=_library)
    torch.library.register_autograd(f"longshort::{forward}", _derivative(backend), setup_context=_save, lib=_library)
    torch.library.register_autograd(f"longshort::{backward}", _refuse, lib=_library)


for _backend, _home in HOMES.items():
    _register(_backend, _home)
