"""What comes before timing: an implementation in bf16 is held to the reference in fp32 on the same numbers.

Also the rule by which benchmarks fail: one that is wrong ends them, one that cannot run is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from benchmarks.attention import both_ends
from benchmarks.registry import Attend, Implementation, Shape
from longshort.ops import attention

Inputs = tuple[Tensor, Tensor, Tensor]

_OUTPUT_ERROR = 2e-2
"""Largest accepted error of an output on standard normal inputs, relative to the larger of it and 1, in bf16."""
_GRADIENT_ERROR = 5e-2
"""Largest accepted norm of the error of a head's gradient, relative to the norm of the gradient."""


class WrongResult(RuntimeError):
    """An implementation computes something else than it says."""


def failure(step: Callable[[], object], *, required: bool) -> str | None:
    """Take a step; why it failed, or None. A wrong result is raised, and so is what fails where it is `required`.

    Too little memory is never more than a failure: it says as much about the machine.
    """
    try:
        step()
    except Exception as problem:
        if isinstance(problem, WrongResult) or (required and not isinstance(problem, torch.OutOfMemoryError)):
            raise
        return f"{type(problem).__name__}: {problem}".strip().splitlines()[0][:300]
    return None


def draw(shape: Shape, work: str, device: str, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v as leaves and a gradient for the output: standard normal, bf16, (B, H, T, D) in (B, T, H, D) memory.

    The generator is not the default one, which a failed capture of a CUDA graph leaves unusable.
    """
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape.batch, shape.length, shape.plan(work).n_heads, shape.head_dim)

    def normal() -> Tensor:
        x = torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)
        return x.transpose(1, 2).clone()  # a tensor of its own with these strides: compilers stumble over leaf views

    q, k, v, grad = (normal() for _ in range(4))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad


def check(implementation: Implementation, attend: Attend, shape: Shape, inputs: Inputs) -> tuple[float, float]:
    """Largest errors of outputs and of gradients; raises `WrongResult` if one is too large, or NaN.

    Outputs and gradients at a reduced length, and the first and last rows of the output at the shape itself, on
    `inputs`, by `attend`, which is the implementation built for that shape.
    """
    short, gradient = _errors_when_short(implementation, _shortened(shape), inputs[0].device.type)
    out = attend(*inputs).detach()  # recording gradients, as when it is timed: FlexAttention is compiled only once
    with torch.no_grad():
        q, k, v = (x.float() for x in inputs)
        ends = both_ends(out, q, k, v, shape.plan(implementation.work))
        output = _largest([torch.tensor(short), *(_output_error(a, b) for a, b in ends)])
    for what, error, allowed in (("output", output, _OUTPUT_ERROR), ("gradient", gradient, _GRADIENT_ERROR)):
        if not error <= allowed:
            where = f"{implementation.name} ({implementation.work}) is wrong at {shape}"
            raise WrongResult(f"{where}: {what} error {error:.1e} > {allowed:.0e}")
    return output, gradient


def _shortened(shape: Shape) -> Shape:
    """Some windows long, in the multiples of 128 that every peer takes."""
    return replace(shape, batch=2, length=min(shape.length, 128 * math.ceil((4 * shape.window + 37) / 128)))


@cache  # several shapes share a shortened one, and FlexAttention would be compiled again for each
def _errors_when_short(implementation: Implementation, shape: Shape, device: str) -> tuple[float, float]:
    q, k, v, upstream = draw(shape, implementation.work, device)
    out = implementation.build(shape)(q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    wanted = attention(exact[0], exact[1], exact[2], shape.plan(implementation.work), backend="reference").out
    wanted_grads = torch.autograd.grad(wanted, exact, upstream.float())
    gradient = _largest([_gradient_error(a, b) for a, b in zip(grads, wanted_grads, strict=True)])
    return _largest([_output_error(out.detach(), wanted.detach())]), gradient


def _output_error(out: Tensor, wanted: Tensor) -> Tensor:
    return ((out.float() - wanted).abs() / wanted.abs().clamp_min(1)).max()


def _gradient_error(grad: Tensor, wanted: Tensor) -> Tensor:
    error, size = (torch.linalg.vector_norm(x, dim=(2, 3)) for x in (grad.float() - wanted, wanted))
    return (error / size).max()


def _largest(errors: list[Tensor]) -> float:
    """NaN if one is: Python's own max would drop it."""
    return torch.stack([error.cpu() for error in errors]).max().item()
