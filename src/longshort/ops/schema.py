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

from longshort.ops import transforms
from longshort.ops.options import SCHEMA, Options
from longshort.ops.padding import ordered_like

HOMES = {"blocked": "longshort.ops.blocked", "triton": "longshort.ops.triton"}
"""Modules with forward(q, k, v, options, segments, extremes, sinks) and backward(grad, q, k, v, out, lse, options,
segments, sinks). `extremes` are 0, 1 (the largest) or 2; those of the logits that it does not ask for may be None, and
so may the gradient of sinks that are None."""
_library = torch.library.Library("longshort", "DEF")
_RECEIVED = len(Options._fields) + 3
"""Arguments of a forward op after q, k and v, the sinks included, which torch.library leaves out if they are None."""
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}


def run(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    segments: Tensor | None,
    extremes: int,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, and the largest and smallest logits, of no meaning unless `extremes` asks for them."""
    if not torch.compiler.is_compiling() and _is_plain(q, k, v, segments, sinks):
        learned = sinks is not None and sinks.requires_grad
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or learned):
            return Direct.apply(backend, q, k, v, options, segments, extremes, sinks)
        return _home(backend).forward(q, k, v, options, segments, extremes, sinks)
    if transforms.active():
        return transforms.Transformed.apply(backend, q, k, v, options, segments, extremes, sinks)
    forward = torch.ops.longshort.blocked_forward if backend == "blocked" else torch.ops.longshort.triton_forward
    result: tuple[Tensor, Tensor, Tensor, Tensor] = forward(q, k, v, *options, segments, extremes, sinks)
    return result


@cache
def _home(backend: str) -> Any:
    return import_module(HOMES[backend])


def _is_plain(q: Tensor, *others: Tensor | None) -> bool:
    """Whether nothing but autograd has to know of the call: no subclass of tensors, no mode, no transform."""
    if q.is_meta or torch._C._len_torch_dispatch_stack() or transforms.active():
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
        sinks: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        out, lse, logit_max, logit_min = _home(backend).forward(q, k, v, options, segments, extremes, sinks)
        ctx.mark_non_differentiable(*(x for x in (lse, logit_max, logit_min) if x is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse, segments, sinks)
        ctx.backend, ctx.options = backend, options
        return out, lse, logit_max, logit_min

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * 8
        q, k, v, out, lse, segments, sinks = ctx.saved_tensors
        tensors = (grads[0], q, k, v, out, lse)
        if torch.is_grad_enabled():  # the library's op refuses a second derivative once it is asked for
            found = getattr(torch.ops.longshort, f"{ctx.backend}_backward")(*tensors, *ctx.options, segments, sinks)
        else:
            found = _home(ctx.backend).backward(*tensors, ctx.options, segments, sinks)
        *others, to_sinks = found
        return (None, *others, None, None, None, None if sinks is None else to_sinks)


def _forward(backend: str) -> Callable[..., Any]:
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
        found = _home(backend).forward(q, k, v, *_received(rest, _RECEIVED))
        return tuple(q.new_empty(0, dtype=torch.float32) if x is None else x for x in found)

    return forward


def _backward(backend: str) -> Callable[..., Any]:
    def backward(*arguments: Any) -> Any:
        tensors, rest = arguments[:6], arguments[6:]
        *grads, found = _home(backend).backward(*tensors, *_received(rest, _RECEIVED - 1))
        return *grads, tensors[5].new_empty(0) if found is None else found

    return backward


def _received(rest: tuple[Any, ...], full: int) -> tuple[Any, ...]:
    """The arguments after the tensors, with the options as a record and the sinks even if they are left out."""
    options = len(Options._fields)
    return (Options.received(*rest[:options]), *rest[options:], *(None,) * (full - len(rest)))


def _dense(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


_EMPTY = {"blocked": _dense, "triton": ordered_like}
"""How a backend allocates results for q, k or v."""


def _forward_fake(backend: str) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    def fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide, extremes = torch.promote_types(q.dtype, torch.float32), rest[len(Options._fields) + 1]
        high, low = (q.new_empty(q.shape[1] if extremes > i else 0, dtype=torch.float32) for i in range(2))
        return _EMPTY[backend](q), q.new_empty(q.shape[:3], dtype=wide), high, low

    return fake


def _backward_fake(backend: str) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    def fake(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sinks = rest[-1] if len(rest) == _RECEIVED - 1 else None
        to_sinks = lse.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)
        grad_q, grad_k, grad_v = (_EMPTY[backend](x) for x in (q, k, k))
        return grad_q, grad_k, grad_v, to_sinks

    return fake


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    q, k, v, *options, segments, _, sinks = inputs
    out, lse, logit_max, logit_min = output
    ctx.mark_non_differentiable(lse, logit_max, logit_min)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, out, lse, segments, sinks)
    ctx.options = options


def _derivative(backend: str) -> Callable[..., tuple[Tensor | None, ...]]:
    def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (len(ctx.options) + 6)
        q, k, v, out, lse, segments, sinks = ctx.saved_tensors
        backward = getattr(torch.ops.longshort, f"{backend}_backward")
        *grads, to_sinks = backward(grad, q, k, v, out, lse, *ctx.options, segments, sinks)
        return (*grads, *(None,) * (len(ctx.options) + 2), None if sinks is None else to_sinks)

    return differentiate


class Packed(torch.autograd.Function):
    """`Direct` for queries, keys and values that are parts of one tensor, whose gradient is written in one piece."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        n_kv_heads: int,
        options: Options,
        segments: Tensor | None,
        extremes: int,
        sinks: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = _home("triton").forward(
            *unpacked(qkv, len(options.windows), n_kv_heads), options, segments, extremes, sinks
        )
        ctx.mark_non_differentiable(*(x for x in found[1:] if x is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(qkv, *found[:2], segments, sinks)
        ctx.n_kv_heads, ctx.options = n_kv_heads, options
        out, lse, logit_max, logit_min = found
        return out, lse, logit_max, logit_min

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return (None,) * 6
        qkv, out, lse, segments, sinks = ctx.saved_tensors
        if torch.is_grad_enabled():
            transforms.refuse_twice(ctx)
        grad_qkv, to_sinks = _packed_backward(grads[0], qkv, out, lse, ctx.n_kv_heads, ctx.options, segments, sinks)
        return grad_qkv, None, None, None, None, to_sinks


def run_packed(
    qkv: Tensor,
    n_kv_heads: int,
    options: Options,
    segments: Tensor | None,
    extremes: int,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`run` by the Triton kernels, for qkv (B, T, (H + 2 H_kv) D): queries, keys and values, each head by head."""
    if not torch.compiler.is_compiling() and _is_plain(qkv, segments, sinks):
        learned = sinks is not None and sinks.requires_grad
        if torch.is_grad_enabled() and (qkv.requires_grad or learned):
            return Packed.apply(qkv, n_kv_heads, options, segments, extremes, sinks)
        return _home("triton").forward(
            *unpacked(qkv, len(options.windows), n_kv_heads), options, segments, extremes, sinks
        )
    found: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.longshort.packed_forward(
        qkv, n_kv_heads, *options, segments, extremes, sinks
    )
    return found


def unpacked(qkv: Tensor, n_heads: int, n_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The views q (B, H, T, D), k and v (B, H_kv, T, D)."""
    heads = qkv.unflatten(-1, (n_heads + 2 * n_kv_heads, -1)).transpose(1, 2)
    q, k, v = heads.split((n_heads, n_kv_heads, n_kv_heads), dim=1)
    return q, k, v


def _packed_backward(
    grad: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    n_kv_heads: int,
    options: Options,
    segments: Tensor | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    grad_qkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    q, k, v = unpacked(qkv, len(options.windows), n_kv_heads)
    into = unpacked(grad_qkv, len(options.windows), n_kv_heads)
    *_, to_sinks = _home("triton").backward(grad, q, k, v, out, lse, options, segments, sinks, into)
    return grad_qkv, to_sinks


def _register(backend: str) -> None:
    forward, backward = f"{backend}_forward", f"{backend}_backward"
    _library.define(
        f"{forward}(Tensor q, Tensor k, Tensor v, {SCHEMA}, Tensor? segments, int extremes, Tensor? sinks=None)"
        " -> (Tensor out, Tensor lse, Tensor logit_max, Tensor logit_min)"
    )
    _library.define(
        f"{backward}(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {SCHEMA},"
        " Tensor? segments, Tensor? sinks=None) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_sinks)"
    )
    for device in ("CPU", "CUDA"):
        _library.impl(forward, _forward(backend), device)
        _library.impl(backward, _backward(backend), device)
    torch.library.register_fake(f"longshort::{forward}", _forward_fake(backend), lib=_library)
    torch.library.register_fake(f"longshort::{backward}", _backward_fake(backend), lib=_library)
    torch.library.register_autograd(f"longshort::{forward}", _derivative(backend), setup_context=_save, lib=_library)
    torch.library.register_autograd(f"longshort::{backward}", transforms.refuse_twice, lib=_library)


for _backend in HOMES:
    _register(_backend)


def _register_packed() -> None:
    def forward(qkv: Tensor, n_kv_heads: int, *rest: Any) -> Any:
        options, *others = _received(rest, _RECEIVED)
        found = _home("triton").forward(*unpacked(qkv, len(options.windows), n_kv_heads), options, *others)
        return tuple(qkv.new_empty(0, dtype=torch.float32) if x is None else x for x in found)

    def forward_fake(qkv: Tensor, n_kv_heads: int, *rest: Any) -> Any:
        options = Options.received(*rest[: len(Options._fields)])
        return _forward_fake("triton")(*unpacked(qkv, len(options.windows), n_kv_heads), *rest)

    def backward(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, n_kv_heads: int, *rest: Any) -> Any:
        grad_qkv, found = _packed_backward(grad, qkv, out, lse, n_kv_heads, *_received(rest, _RECEIVED - 1))
        return grad_qkv, lse.new_empty(0) if found is None else found

    def backward_fake(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, n_kv_heads: int, *rest: Any) -> Any:
        sinks = rest[-1] if len(rest) == _RECEIVED - 1 else None
        return qkv.new_empty(qkv.shape), lse.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        qkv, ctx.n_kv_heads, *ctx.options, segments, _, sinks = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(qkv, *output[:2], segments, sinks)

    def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * (len(ctx.options) + 5)
        qkv, out, lse, segments, sinks = ctx.saved_tensors
        grad_qkv, to_sinks = torch.ops.longshort.packed_backward(
            *(grad, qkv, out, lse, ctx.n_kv_heads, *ctx.options, segments, sinks)
        )
        return (grad_qkv, *(None,) * (len(ctx.options) + 3), None if sinks is None else to_sinks)

    _library.define(
        f"packed_forward(Tensor qkv, int n_kv_heads, {SCHEMA}, Tensor? segments, int extremes, Tensor? sinks=None)"
        " -> (Tensor out, Tensor lse, Tensor logit_max, Tensor logit_min)"
    )
    _library.define(
        f"packed_backward(Tensor grad, Tensor qkv, Tensor out, Tensor lse, int n_kv_heads, {SCHEMA},"
        " Tensor? segments, Tensor? sinks=None) -> (Tensor grad_qkv, Tensor grad_sinks)"
    )
    for device in ("CPU", "CUDA"):
        _library.impl("packed_forward", forward, device)
        _library.impl("packed_backward", backward, device)
    torch.library.register_fake("longshort::packed_forward", forward_fake, lib=_library)
    torch.library.register_fake("longshort::packed_backward", backward_fake, lib=_library)
    torch.library.register_autograd("longshort::packed_forward", differentiate, setup_context=save, lib=_library)
    torch.library.register_autograd("longshort::packed_backward", transforms.refuse_twice, lib=_library)


_register_packed()
