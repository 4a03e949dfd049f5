"""The op under torch.func (grad, vjp, jacrev, vmap ...) and forward-mode autograd.

The autograd of torch.library does not know torch.func, and gives a forward-mode derivative of zero without a word. Here
the first derivative is that of the library's backward op, alone or mapped; forward mode and second derivatives, which
our backends do not have, are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from longshort.ops.options import Options


def active() -> bool:
    """Whether a transform of torch.func or forward-mode autograd is at work; if so, the op is not compiled."""
    found = _at_work()
    if found and torch.compiler.is_compiling():
        torch._dynamo.graph_break()
    return found


def _at_work() -> bool:
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


# Compiled code asks while it is traced, and torch guards the answer. This is what assume_constant_result of
# torch.compiler does, without loading the compiler.
_at_work._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_twice(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError('attention has no double backward in this backend; backend="reference" has one')


def refuse_forward_mode(ctx: Any, *tangents: Any) -> Any:
    raise RuntimeError('attention has no forward-mode derivative in this backend; backend="reference" has one')


class Transformed(torch.autograd.Function):
    """The forward op of a backend; lse and the extremes of the logits are not differentiable."""

    generate_vmap_rule = True
    jvp = staticmethod(refuse_forward_mode)

    @staticmethod
    def forward(
        backend: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        options: Options,
        segments: Tensor | None,
        extremes: int,
        sinks: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        forward = getattr(torch.ops.longshort, f"{backend}_forward")
        result: tuple[Tensor, Tensor, Tensor, Tensor] = forward(q, k, v, *options, segments, extremes, sinks)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.backend, q, k, v, ctx.options, segments, _, sinks = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(q, k, v, *output[:2], segments, sinks)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, segments, sinks = ctx.saved_tensors
        *found, to_sinks = _Backward.apply(ctx.backend, ctx.options, segments, sinks, grads[0], *tensors)
        return (None, *found, None, None, None, None if sinks is None else to_sinks)


class _Backward(torch.autograd.Function):
    """The backward op of a backend."""

    generate_vmap_rule = True
    jvp = staticmethod(refuse_forward_mode)
    backward = staticmethod(refuse_twice)

    @staticmethod
    def forward(
        backend: str, options: Options, segments: Tensor | None, sinks: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        backward = getattr(torch.ops.longshort, f"{backend}_backward")
        found: tuple[Tensor, ...] = backward(*tensors, *options, segments, sinks)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass
