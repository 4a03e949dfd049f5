"""Cross-entropy of a chunk of logits in one kernel, which reads them from memory once and overwrites them with their
gradient.

Separate PyTorch operations pass over the logits about ten times, in fp32. The kernel computes the same as
`longshort.losses.linear._chunk_loss`.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longshort.ops.triton.scores import LN2, LOG2E, NEVER

_WARPS = 16
_LANES = _WARPS * 32 * 8
"""Classes side by side: eight to a thread, as many as it reads at once."""
_DEEP = 2
"""Rows of lanes that share a maximum before the exponentials are taken: one rescaling for all of them."""


@triton.jit(do_not_specialize=("ignored", "n_classes"))
def cross_entropy_kernel(
    logits, targets, losses, stride, width, n_classes, ignored, z_weight, exponent, linear_below, softcap,
    GRADIENT: tl.constexpr, DAMPED: tl.constexpr, CAPPED: tl.constexpr, LANES: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    """A program owns a row; its second pass over the logits reads them from the cache.

    The bound of memory is `width`: vectors of logits can be read only where it is a multiple of theirs.
    """
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, DEEP)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    at = logits + row * stride
    target = tl.load(targets + row)
    kept = target != ignored
    # A target that is not a class would read foreign memory, so it makes the loss NaN instead.
    picked = tl.load(at + target, mask=(target >= 0) & (target < n_classes), other=float("nan")).to(tl.float32)
    if DAMPED:
        picked = damped(picked, exponent, linear_below)
    if CAPPED:
        picked = capped(picked, softcap)
    above, total = tl.full((LANES,), NEVER, tl.float32), tl.zeros((LANES,), tl.float32)
    for start in range(0, width, LANES * DEEP):
        x = tl.load(at + start + lanes, mask=start + lanes < width, other=0.0).to(tl.float32)
        if DAMPED:
            x = damped(x, exponent, linear_below)
        if CAPPED:
            x = capped(x, softcap)
        x = tl.where(start + lanes < n_classes, x, float("-inf"))
        higher = tl.maximum(above, tl.max(x, 0))
        total = total * tl.exp2((above - higher) * LOG2E) + tl.sum(tl.exp2((x - higher[None, :]) * LOG2E), 0)
        above = higher
    largest = tl.max(above, 0)
    total = tl.sum(total * tl.exp2((above - largest) * LOG2E), 0)
    lse = largest + tl.log2(total) * LN2
    tl.store(losses + row, tl.where(kept, lse - picked + z_weight * lse * lse, 0.0))
    if GRADIENT:
        factor = (1.0 + 2.0 * z_weight * lse) / total
        for start in range(0, width, LANES * DEEP):
            inside = start + lanes < width
            x = tl.load(at + start + lanes, mask=inside, other=0.0).to(tl.float32)
            score = x
            if DAMPED:
                score = damped(x, exponent, linear_below)
            if CAPPED:
                score = capped(x, softcap)
            residual = tl.exp2((score - largest) * LOG2E) * factor - (start + lanes == target).to(tl.float32)
            if DAMPED:
                residual *= damped_slope(x, exponent, linear_below)
            if CAPPED:
                residual *= capped_slope(x, softcap)
            residual = tl.where(kept & (start + lanes < n_classes), residual, 0.0).to(logits.dtype.element_ty)
            tl.store(at + start + lanes, residual, mask=inside)


@triton.jit
def damped(x, exponent, linear_below):
    """`longshort.losses.transform.transformed`."""
    size = tl.abs(x)
    logarithm = tl.log2(tl.maximum(size, linear_below))
    power = tl.exp2(tl.where(exponent == 0.0, 0.0, exponent * logarithm))  # 0 times infinity is 0 here
    steep = tl.exp2((exponent - 1.0) * tl.log2(linear_below))
    return tl.where(size >= linear_below, tl.where(x < 0.0, -power, power), steep * x)


@triton.jit
def damped_slope(x, exponent, linear_below):
    """`longshort.losses.transform.slope_of`."""
    size = tl.abs(x)
    power = tl.exp2((exponent - 1.0) * tl.log2(tl.maximum(size, linear_below)))
    return tl.where(size < linear_below, power, exponent * power)


@triton.jit
def capped(x, softcap):
    """`longshort.losses.transform.capped_scores`."""
    return softcap * (2.0 * tl.sigmoid(2.0 * x / softcap) - 1.0)


@triton.jit
def capped_slope(x, softcap):
    """The derivative of `capped`: 1 - tanh^2."""
    return 4.0 * tl.sigmoid(2.0 * x / softcap) * tl.sigmoid(-2.0 * x / softcap)


def chunk_loss(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    z_weight: float,
    with_gradient: bool,
    exponent: float,
    linear_below: float,
    softcap: float = 0.0,
    *,
    n_classes: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Summed loss (fp32) of one chunk, and its gradient, which overwrites the logits.

    Args:
        logits: (N, V), rows dense.
        n_classes: V if None; columns beyond it are padding, which is left out and gets a gradient of zero.
        targets: (N,) int64; a row whose target is `ignore_index` adds nothing and gets a gradient of zero.
    """
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    cross_entropy_kernel[(logits.shape[0],)](
        *(logits, targets, losses, logits.stride(0), logits.shape[1], n_classes or logits.shape[1]),
        *(ignore_index, z_weight),
        *(exponent, linear_below, softcap or 1.0),
        **{"GRADIENT": with_gradient, "DAMPED": exponent != 1, "CAPPED": softcap != 0},
        **{"LANES": _LANES, "DEEP": _DEEP, "num_warps": _WARPS},
    )
    return losses.sum(), logits if with_gradient else None
