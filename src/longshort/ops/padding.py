"""Tensors in a form that the flash kernels and ours can read: dense rows, and zeros in place of padding; and results in
the memory order of their inputs."""

from __future__ import annotations

from torch import Tensor


def without_padding(segments: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros where segments are negative: whatever padding holds, even NaN, must not affect anything."""
    q, k, v = (dense_rows(x) for x in (q, k, v))
    if segments is None:
        return q, k, v
    padded = (segments < 0)[:, None, :, None]
    ours = padded[:, :, k.shape[2] - q.shape[2] :]
    return q.masked_fill(ours, 0), k.masked_fill(padded, 0), v.masked_fill(padded, 0)


def dense_rows(x: Tensor) -> Tensor:
    """The flash kernels ignore the stride of the last dimension, so it must be 1."""
    return x if x.stride(-1) == 1 else x.contiguous()


def ordered_like(x: Tensor) -> Tensor:
    """An empty tensor of the shape (B, H, T, D) of x, with the heads of a position side by side in memory if x's are:
    what a projection makes and the next one reads."""
    batch, heads, length, dim = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(batch, length, heads, dim).transpose(1, 2)
    return x.new_empty(x.shape)
