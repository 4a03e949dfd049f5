"""PyTorch's own flash attention under one pair of functions for CPU and CUDA, with the log-sum-exp that SDPA hides.

Called through aten because only there is lse returned and taken back: the pieces of a row are merged by it, and the
backward of a piece needs the lse of the whole row. Inputs are (N, n, rows, D) views of any stride.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor

_aten = torch.ops.aten
_SQUARE = 512
_IS_ARM = platform.machine().lower() in ("aarch64", "arm64")


def serves(q: Tensor, *, masked: bool) -> bool:
    """CUDA's kernel takes no mask, half precision only, and a head dimension that is a multiple of 8."""
    if q.device.type == "cpu":
        return True
    return not masked and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out (N, n, rows, D) and lse (N, n, rows). A row whose mask is all -inf gives an arbitrary finite lse."""
    if q.device.type == "cpu":
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    else:
        out, lse = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
    return out, lse


def differentiate(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of one piece, given out and lse of whole rows."""
    if q.device.type == "cpu":
        return _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale
        )
    lse = lse.contiguous()  # the kernel takes no strides for it
    no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
    return _aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, no_dropout, no_dropout, scale=scale
    )


def band_block(window: int, *, backward: bool) -> tuple[int, int]:
    """(queries in a block, multiple to which its keys are rounded up) for a local head on this CPU."""
    if window > 256:
        return (128 if backward else 64), 16
    if _IS_ARM:
        return 32, 1
    return (64 if backward else 16), 16


def square_side(q: Tensor) -> int:
    """Side of the causal squares into which a global head's triangle is cut."""
    return _SQUARE if q.device.type == "cpu" else q.shape[1]


def row_parts(q: Tensor) -> int:
    """Shares to cut an open rectangle's rows into: the backward runs one thread per head and share."""
    threads = torch.get_num_threads() if q.device.type == "cpu" else 1
    return 1 if q.shape[0] % threads == 0 else 1 << (threads - 1).bit_length()
