"""Skipping tiles that cannot hold a pair of equal segments, by the lowest and highest segment of each block.

Segments may come in any order: a tile is skipped only if its range of segments and that of the other side do not
overlap. With packed documents that leaves only each document's own tiles; with padding, it skips the padding.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

BLOCK = tl.constexpr(64)
"""Positions whose segments share a range."""
NONE = tl.constexpr(1 << 62)
"""The lowest segment of a block of padding alone; its highest is -1."""
SHORT = tl.constexpr(4 * 64)
"""For walks of no more positions than this, looking up the ranges does not pay."""


@triton.jit(do_not_specialize=("S", "blocks"))
def segment_ranges_kernel(segments, ranges, S, blocks, BLOCKS: tl.constexpr):
    """(B, blocks, 2): the lowest and the highest segment of each block, leaving out padding."""
    b, block = tl.program_id(0), tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    position = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    ids = tl.load(segments + b.to(tl.int64) * S + position, mask=position < S, other=-1)
    at = ranges + (b.to(tl.int64) * blocks + block) * 2
    tl.store(at, tl.min(tl.where(ids >= 0, ids, NONE), 1), mask=block < blocks)
    tl.store(at + 1, tl.max(ids, 1), mask=block < blocks)


@triton.jit
def meeting(ranges, b, own, start, stop, shift, S, OWN: tl.constexpr, STEP: tl.constexpr):
    """The part of a walk, start .. stop in steps of STEP, that may meet a segment of positions own .. own+OWN.

    The walk is over queries or keys; their positions are `shift` higher.
    """
    if stop - start > SHORT:
        blocks = tl.cdiv(S, BLOCK)
        ranges += b.to(tl.int64) * blocks * 2
        mine = own // BLOCK + tl.arange(0, max(2, 2 * OWN // BLOCK))
        real = mine * BLOCK < tl.minimum(own + OWN, S)
        low = tl.min(tl.load(ranges + mine * 2, mask=real, other=NONE), 0)
        high = tl.max(tl.load(ranges + mine * 2 + 1, mask=real, other=-1), 0)
        first, last = stop + shift, start + shift
        for chunk in range((start + shift) // BLOCK, tl.cdiv(stop + shift, BLOCK), 128):
            block = chunk + tl.arange(0, 128)
            there = block < blocks
            lows = tl.load(ranges + block * 2, mask=there, other=NONE)
            highs = tl.load(ranges + block * 2 + 1, mask=there, other=-1)
            meets = (lows <= high) & (highs >= low)
            first = tl.minimum(first, tl.min(tl.where(meets, block * BLOCK, stop + shift), 0))
            last = tl.maximum(last, tl.max(tl.where(meets, block * BLOCK + BLOCK, start + shift), 0))
        stop = tl.minimum(stop, last - shift)
        start = tl.minimum(tl.maximum(start, (first - shift) // STEP * STEP), stop)
    return start, stop
