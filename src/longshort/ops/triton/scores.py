"""What a tile of logits becomes, shared by the forward and both backward kernels.

Letters: M query rows and N key columns of a tile.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def visible_pairs(
    t_M, j_N, real_M, real_N, window, query_segments, key_segments, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr
):
    """(M, N): may the query at position t see the key at position j?"""
    offset = t_M[:, None] - j_N[None, :]
    visible = real_M[:, None] & real_N[None, :] & (offset < window)
    visible = visible & (offset >= 0 if CAUSAL else offset > -window)
    if SEGMENTS:
        ours = tl.load(query_segments, mask=real_M, other=-1)
        theirs = tl.load(key_segments, mask=real_N, other=-2)
        visible = visible & (ours[:, None] == theirs[None, :]) & (ours >= 0)[:, None]
    return visible


@triton.jit
def scores(logits, t_M, j_N, decay, slope, softcap, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr):
    """x of the definition, before the mask, and dx / dlogits."""
    x = logits
    derivative = tl.full(x.shape, 1.0, tl.float32)
    distance = tl.abs(t_M[:, None] - j_N[None, :]).to(tl.float32)
    if DECAY:
        derivative = tl.exp(-decay * distance)
        x = x * derivative
    if SOFTCAP:
        tanh = 2.0 * tl.sigmoid(2.0 * x / softcap) - 1.0
        x = softcap * tanh
        derivative = derivative * (1.0 - tanh * tanh)
    if SLOPE:
        x = x - slope * distance
    return x, derivative
