"""torch.library schemas, fakes and autograd of our backends: each has one opaque forward op and one backward op.

They are opaque so that torch.compile neither traces the blocks nor recompiles when the length crosses a window.
Statistics are outputs, never hooks, which compile would drop. Backends are imported when first called.

Eager calls with plain tensors do not go through torch.library, which would cost them more than the launch of a kernel:
see `Direct`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from longshort.ops.options import SCHEMA, Options

HOMES = {"blocked": "longshort.ops.blocked", "triton": "longshort.ops.triton"}
"""Modules with forward(q, k, v, options, segments, extremes) and backward(grad, q, k, v, out, lse, options, segments).
`extremes` are 0, 1 (the largest) or 2; those of the logits that it does not ask for may be None."""
_library = torch.library.Library("longshort", "DEF")
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}


def run(
    backend: str, q: Tensor, k: Tensor, v: Tensor, options: Options, segments: Tensor | None, extremes: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, and the largest and smallest logits, of no meaning unless `extremes` asks for them."""
    if not torch.compiler.is_compiling() and _is_plain(q, k, v, segments):
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            return Direct.apply(backend, q, k, v, options, segments, extremes)
        return _home(backend).forward(q, k, v, options, segments, extremes)
    forward = torch.ops.longshort.blocked_forward if backend == "blocked" else torch.ops.longshort.triton_forward
    result: tuple[Tensor, Tensor, Tensor, Tensor] = forward(q, k, v, *options, segments, extremes)
    return result


@cache
def _home(backend: str) -> Any:
    return import_module(HOMES[backend])


def _is_plain(q: Tensor, *others: Tensor | None) -> bool:
    """Whether nothing but autograd has to know of the call: no subclass of tensors, no mode, no transform."""
    if q.is_meta or torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return type(q) in _PLAIN and all(type(x) in _PLAIN for x in others)


class Direct(torch.autograd.Function):
    """The op as eager mode runs it: what the library's ops compute, with less between the caller and the kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        backend: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: Options,
        segments: Tensor | None,
        extremes: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        out, lse, logit_max, logit_min = _home(backend).forward(q, k, v, options, segments, extremes)
        ctx.mark_non_differentiable(*(x for x in (lse, logit_max, logit_min) if x is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, segments)
        ctx.backend, ctx.options = backend, options
        return out, lse, logit_max, logit_min

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * 7
        q, k, v, out, lse, segments = ctx.saved_tensors
        tensors = (grads[0], q, k, v, out, lse)
        if torch.is_grad_enabled():  # the library's op refuses a second derivative once it is asked for
            found = getattr(torch.ops.longshort, f"{ctx.backend}_backward")(*tensors, *ctx.options, segments)
        else:
            found = _home(ctx.backend).backward(*tensors, ctx.options, segments)
        return (None, *found, None, None, None)


def _forward(home: str) -> Callable[..., Any]:
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        *options, segments, extremes = rest
        out, lse, *found = import_module(home).forward(q, k, v, Options.received(*options), segments, extremes)
        return out, lse, *(q.new_empty(0, dtype=torch.float32) if x is None else x for x in found)

    return forward


def _backward(home: str) -> Callable[..., Any]:
    def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> Any:
        *options, segments = rest
        return import_module(home).backward(grad, q, k, v, out, lse, Options.received(*options), segments)

    return backward


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide, extremes = torch.promote_types(q.dtype, torch.float32), rest[-1]
    high, low = (q.new_empty(q.shape[1] if extremes > i else 0, dtype=torch.float32) for i in range(2))
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide), high, low


def _backward_fake(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    q, k, v, *options, segments, _ = inputs
    out, lse, logit_max, logit_min = output
    ctx.mark_non_differentiable(lse, logit_max, logit_min)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, segments)
    ctx.options = options


def _derivative(backend: str) -> Callable[..., tuple[Tensor | None, ...]]:
    def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (len(ctx.options) + 5)
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
        f"{forward}(Tensor q, Tensor k, Tensor v, {SCHEMA}, Tensor? segments, int extremes)"
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


for _backend, _module in HOMES.items():
    _register(_backend, _module)
