"""Cross-entropy of a linear head that never holds all of its logits.

The logits of a language model are its largest tensor: 16,384 tokens of a 50,257-word vocabulary are 3.3 GB in fp32, and
the usual loss holds several copies. Here they exist for one chunk of tokens at a time. The gradients are computed in
the same pass, while the chunk is in memory, so nothing but the gradients is saved and nothing is computed twice.

Shapes: N tokens, d features, V classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from math import ceil
from typing import Any

import torch
from torch import Tensor

from longshort.losses.head import TILE, padded_head, product_dtype
from longshort.losses.transform import capped_scores, check_exponent, check_softcap, is_number, slope_of, transformed
from longshort.ops import transforms

_TRITON = find_spec("triton") is not None
_CHUNK_BYTES = 64 * 2**20
"""Budget for one chunk of fp32 logits. Smaller chunks spend their time adding up the (V, d) weight gradient."""
_FUSED_CHUNK_BYTES = 2**30
"""Budget for one chunk where the kernel overwrites the logits with their gradient. A GPU wants thousands of rows."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    z_weight: float = 0.0,
    chunk: int | None = None,
    exponent: float = 1.0,
    linear_below: float = 0.01,
    softcap: float | None = None,
) -> Tensor:
    """Mean cross-entropy of softmax(hidden @ weight.T) against targets; fp32 (float64 for float64 inputs).

    Equal to `F.cross_entropy(hidden @ weight.T, targets)`, plus `z_weight` times the mean squared log-sum-exp (PaLM's
    z-loss, arXiv 2204.02311), both over the tokens that are not ignored. With `exponent` below 1 the logits are
    `transform_scores(hidden @ weight.T, exponent, linear_below)`, with `softcap` they are `capped_scores` of it. When
    all tokens are ignored, the loss and the gradients are 0. Softmax and sums are fp32 and the weight's gradient is
    summed over chunks in fp32; the matrix products run in the inputs' dtype, or autocast's. Differentiable once;
    under torch.func and forward-mode autograd the logits exist as a whole, and it is differentiable at will.

    Args:
        hidden: (N, d).
        weight: (V, d).
        targets: (N,) int64 class indices; a token whose target is `ignore_index` is left out.
        chunk: number of tokens whose logits exist at a time; if None, as many as fill at most 1 GiB on a GPU and 64 MiB
            (in fp32) elsewhere.

    >>> hidden, weight = torch.randn(10, 8), torch.randn(100, 8)
    >>> targets = torch.randint(100, (10,))
    >>> loss = linear_cross_entropy(hidden, weight, targets, chunk=4)
    >>> torch.allclose(loss, torch.nn.functional.cross_entropy(hidden @ weight.T, targets))
    True
    """
    _check(hidden, weight, targets, ignore_index, z_weight, chunk)
    check_exponent("exponent", exponent, "linear_below", linear_below)
    check_softcap("softcap", softcap, "exponent", exponent)
    dtype = product_dtype(hidden, weight)
    if transforms.active():
        return _of_whole_logits(hidden, weight, targets, ignore_index, z_weight, exponent, linear_below, softcap, dtype)
    recording = torch.is_grad_enabled()
    loss, _, _, _ = torch.ops.longshort.linear_cross_entropy(
        hidden,
        weight,
        targets,
        ignore_index,
        float(z_weight),
        float(exponent),
        float(linear_below),
        float(softcap or 0),
        chunk or 0,
        dtype,
        recording and hidden.requires_grad,
        recording and weight.requires_grad,
    )
    return loss


def _of_whole_logits(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    z_weight: float,
    exponent: float,
    linear_below: float,
    softcap: float | None,
    dtype: torch.dtype,
) -> Tensor:
    """The same for torch.func and forward-mode autograd, which know nothing of the op: differentiable at will."""
    kept = targets != ignore_index
    with torch.autocast(hidden.device.type, enabled=False):
        features = hidden.masked_fill(~kept[:, None], 0).to(dtype)  # what an ignored row holds does not matter
        logits = (features @ weight.to(dtype).mT).to(torch.promote_types(dtype, torch.float32))
        if exponent != 1:
            logits = transformed(logits, exponent, linear_below)
        elif softcap:
            logits = capped_scores(logits, softcap)
        lse = logits.logsumexp(-1)
        picked = logits.gather(-1, targets.where(kept, 0)[:, None])[:, 0]
        losses = lse - picked + z_weight * lse.square()
    return losses.masked_fill(~kept, 0).sum() / kept.sum().clamp_min(1)


# define and impl cost half the CPU time of custom_op. A softcap of 0 is none, and a chunk of 0 lets the op choose. The
# gradient outputs are of the summed loss, not of the mean: fp16 would lose them, since a loss scale arrives only in
# backward, where both it and 1 / count are applied.
torch.library.define(
    "longshort::linear_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor targets, int ignore_index, float z_weight, float exponent, "
    "float linear_below, float softcap, int chunk, ScalarType dtype, bool grad_hidden, bool grad_weight) "
    "-> (Tensor loss, Tensor d_hidden, Tensor d_weight, Tensor count)",
)


@torch.library.impl("longshort::linear_cross_entropy", "CompositeExplicitAutograd")
def _forward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    z_weight: float,
    exponent: float,
    linear_below: float,
    softcap: float,
    chunk: int,
    dtype: torch.dtype,
    grad_hidden: bool,
    grad_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total_dtype = torch.promote_types(dtype, torch.float32)
    fused = _has_kernel(hidden.device) and dtype != torch.float64
    chunk_loss = _fused(weight.shape[0]) if fused else _chunk_loss
    count = (targets != ignore_index).sum().clamp_min(1)
    total = torch.zeros((), dtype=total_dtype, device=hidden.device)
    d_hidden = hidden.new_empty(hidden.shape if grad_hidden else (0,))
    with torch.autocast(hidden.device.type, enabled=False):
        head = padded_head(weight, dtype) if fused else weight.to(dtype)
        d_head = torch.zeros(head.shape if grad_weight else (0,), dtype=total_dtype, device=weight.device)
        chunk = chunk or _fitting(hidden.shape[0], head, fused)
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            features = hidden[rows].to(dtype)
            loss, residual = chunk_loss(
                *(features @ head.mT, targets[rows], ignore_index, z_weight, grad_hidden or grad_weight),
                *(exponent, linear_below, softcap),
            )
            total += loss
            if residual is not None:
                residual = residual.to(dtype)
                if grad_hidden:
                    d_hidden[rows] = residual @ head
                if grad_weight:
                    _add_product(d_head, residual.mT, features)
            del residual  # before the next chunk's logits are allocated
    return total / count, d_hidden, d_head[: len(weight)].to(_gradient_dtype(weight)), count


def _gradient_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of the weight's gradient until backward: a sum over many tokens is beyond what fp16 can hold."""
    return torch.float32 if weight.dtype == torch.float16 else weight.dtype


def _has_kernel(device: torch.device) -> bool:
    return device.type == "cuda" and _TRITON


def _fitting(n_tokens: int, head: Tensor, fused: bool) -> int:
    """Number of tokens per chunk; for the kernel, of whole tiles and such that the last chunk is not a small one."""
    if not fused:
        return max(1, _CHUNK_BYTES // (4 * len(head)))
    most = max(1, _FUSED_CHUNK_BYTES // (TILE * len(head) * head.element_size()))
    tiles = max(1, ceil(n_tokens / TILE))
    return ceil(tiles / ceil(tiles / most)) * TILE


def _fused(n_classes: int) -> Callable[..., tuple[Tensor, Tensor | None]]:
    from longshort.ops.triton.cross_entropy import chunk_loss

    return partial(chunk_loss, n_classes=n_classes)


def _chunk_loss(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    z_weight: float,
    with_gradient: bool,
    exponent: float,
    linear_below: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Summed loss of one chunk and its gradient, which overwrites the logits so that there is one copy, not three."""
    kept, slope = targets != ignore_index, None
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if exponent != 1:
        slope = slope_of(logits, exponent, linear_below) if with_gradient else None
        logits = transformed(logits, exponent, linear_below)
    elif softcap:
        bounded = torch.tanh(logits / softcap)
        slope = 1 - bounded.square() if with_gradient else None
        logits = bounded.mul_(softcap)
    labels = targets.where(kept, 0)[:, None]
    largest = logits.amax(-1, keepdim=True)
    picked = logits.gather(-1, labels)
    exponentials = logits.sub_(largest).exp_()
    normalizer = exponentials.sum(-1, keepdim=True)
    lse = normalizer.log() + largest
    losses = lse - picked + z_weight * lse.square()
    loss = losses.masked_fill(~kept[:, None], 0).sum()
    if not with_gradient:
        return loss, None
    residual = exponentials.mul_((1 + 2 * z_weight * lse) / normalizer)
    residual.scatter_add_(-1, labels, -torch.ones_like(picked))
    if slope is not None:
        residual.mul_(slope)
    return loss, residual.masked_fill_(~kept[:, None], 0)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b; on a GPU the product adds to it itself, so that half precision is not rounded on the way."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += a @ b


@torch.library.register_fake("longshort::linear_cross_entropy")
def _fake(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    z_weight: float,
    exponent: float,
    linear_below: float,
    softcap: float,
    chunk: int,
    dtype: torch.dtype,
    grad_hidden: bool,
    grad_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty((), dtype=torch.promote_types(dtype, torch.float32)),
        hidden.new_empty(hidden.shape if grad_hidden else (0,)),
        weight.new_empty(weight.shape if grad_weight else (0,), dtype=_gradient_dtype(weight)),
        targets.new_empty((), dtype=torch.int64),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, d_hidden, d_weight, count = output
    ctx.mark_non_differentiable(d_hidden, d_weight, count)
    ctx.save_for_backward(d_hidden, d_weight, count)
    ctx.wanted, ctx.weight_dtype = inputs[-2:], inputs[1].dtype


def _backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "linear_cross_entropy cannot be differentiated twice (create_graph=True): "
            "use F.cross_entropy of the logits where that is needed"
        )
    d_hidden, d_weight, count = ctx.saved_tensors
    scale = grad_loss / count
    grad_hidden, grad_weight = ctx.wanted
    return (
        (d_hidden * scale).to(d_hidden.dtype) if grad_hidden else None,
        (d_weight * scale).to(ctx.weight_dtype) if grad_weight else None,
        *(None,) * 10,
    )


torch.library.register_autograd("longshort::linear_cross_entropy", _backward, setup_context=_save)


def _check(
    hidden: Tensor, weight: Tensor, targets: Tensor, ignore_index: int, z_weight: float, chunk: int | None
) -> None:
    for name, x in (("hidden", hidden), ("weight", weight), ("targets", targets)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
    for name, x in (("hidden", hidden), ("weight", weight)):
        if x.ndim != 2 or not x.is_floating_point():
            raise ValueError(f"{name} must be a floating-point matrix, got {x.dtype} of shape {tuple(x.shape)}")
    if hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"weight must have the {hidden.shape[1]} features of hidden, got {weight.shape[1]}")
    if weight.shape[0] < 1:
        raise ValueError("weight must have at least one class, got 0")
    if targets.dtype != torch.int64 or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"targets must be int64 of shape {tuple(hidden.shape[:1])}, "
            f"got {targets.dtype} of shape {tuple(targets.shape)}"
        )
    if not (hidden.device == weight.device == targets.device):
        raise ValueError(
            f"hidden, weight and targets must be on one device, got {hidden.device}, {weight.device}, {targets.device}"
        )
    if not is_number(z_weight) or not 0 <= z_weight <= 1e30:
        raise ValueError(f"z_weight must be a number from 0 to 1e+30, got {z_weight!r}")
    if chunk is not None and (not _is_integer(chunk) or chunk < 1):
        raise ValueError(f"chunk must be None or an integer >= 1, got {chunk!r}")
    if not _is_integer(ignore_index):
        raise ValueError(f"ignore_index must be an integer, got {ignore_index!r}")


def _is_integer(value: object) -> bool:
    """A symbolic integer of torch.compile counts too."""
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
