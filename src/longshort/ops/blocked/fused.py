"""PyTorch's own flash attention under one pair of functions for CPU and CUDA, with the log-sum-exp that SDPA hides.

It is called through aten because only aten returns and accepts lse: the pieces of a row are merged by it, and the
backward of a piece needs the lse of the whole row. Inputs are (N, n, rows, D) views of any stride.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor

_aten = torch.ops.aten
_IS_ARM = platform.machine().lower() in ("aarch64", "arm64")


def serves(q: Tensor, *, scale: float, masked: bool) -> bool:
    """Both kernels scale after masking, so scale must be > 0; CUDA's takes no mask and only half precision. Other
    devices have no such kernel."""
    if scale <= 0:
        return False
    if q.device.type == "cpu":
        return True
    if q.device.type != "cuda":
        return False
    half = q.dtype in (torch.float16, torch.bfloat16)
    return half and not masked and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out (N, n, rows, D) and lse (N, n, rows). A row whose mask is all -inf gives an arbitrary finite lse."""
    if q.device.type == "cpu":
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        if mask is None:
            out, lse = _with_broken_rows(q, k, out, lse)
    else:
        out, lse = _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2]
        broken = lse == torch.inf  # how that kernel writes the log of a sum that is NaN
        out, lse = out.masked_fill(broken[..., None], torch.nan), lse.masked_fill(broken, torch.nan)
    return out, lse


def _with_broken_rows(q: Tensor, k: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """NaN for rows whose logits are all NaN or -inf, for which the CPU's kernel writes zeros if they are short.

    All rows see the first key, whose logit is then not finite either.
    """
    empty = lse == 0
    if not torch.compiler.is_compiling() and not empty.any():  # compiled code does not branch on numbers
        return out, lse
    logit = (q.to(lse.dtype) * k[..., :1, :].to(lse.dtype)).sum(-1)
    broken = empty & (out == 0).all(-1) & ~logit.isfinite()
    return out.masked_fill(broken[..., None], torch.nan), lse.masked_fill(broken, torch.nan)


def attend_last(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
    """The last position's query (B, H, 1, D) over k and v (B, H_kv, S, D), all of which it sees, in any order.

    The query heads of a KV head become the rows of one query. For decoding on a CPU, where the public op's overhead
    takes several times as long as the kernel.
    """
    queries = q.unflatten(1, (k.shape[1], -1))[:, :, :, 0]
    out, lse = attend(queries, k, v, scale=q.shape[-1] ** -0.5, causal=False)
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks.view(k.shape[1], -1)).unsqueeze(-1).to(out.dtype)
    return out.reshape(q.shape)


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
    lse = lse.contiguous()  # the kernel ignores its strides
    no_dropout = torch.zeros((), dtype=torch.int64, device=q.device)
    return _aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, no_dropout, no_dropout, scale=scale
    )


def band_block(window: int, *, backward: bool) -> tuple[int, int]:
    """(queries in a block, multiple to which its keys are rounded up) for a local head on this CPU.

    The best of blocks of 16 to 256 at windows of 50 to 1024, or within a few percent of it:
    see docs/notes/kernel-notes.md.
    """
    align = 1 if _IS_ARM else 16
    if not backward:
        return (24 if window <= 256 else 32), align
    if window > 256:
        return 128, align
    return (32, 1) if window <= 64 or _IS_ARM else (48, align)


def head_parts(q: Tensor, *, causal: bool) -> int:
    """Parts (a power of two) to cut each global head into, so that no thread is idle: the backward runs by heads.

    A short causal row on a CPU is cut too: the kernel takes 512 keys at a time and skips none of them, so it computes a
    whole square of 512 where only half is visible (docs/notes/kernel-notes.md).
    """
    if q.device.type != "cpu":
        return 1
    length = q.shape[1]
    if causal and 128 <= length < 1024:
        return 2 if length < 384 else 4
    parts = 1 << (-(-torch.get_num_threads() // q.shape[0]) - 1).bit_length()
    return parts if length >= 512 * parts else 1
