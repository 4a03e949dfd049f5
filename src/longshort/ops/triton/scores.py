"""From a tile of logits to scores, shared by the forward, backward and decoding kernels.

Letters: M query rows and N key columns of a tile, D head dimension. Exponentials are base 2, as in the hardware: a
score is factor * x with x in whatever unit is cheapest, so that without decay, softcap or slope the scale costs
nothing.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(-1e30)
"""The running maximum of a row that has seen nothing; finite, so that no subtraction gives NaN."""

FADES = 0.16
"""The largest decay whose factor may be split: with tiles of at most 128 positions no part is above exp(41) = 6e17."""


@triton.jit
def visible_range(t, window, S, CAUSAL: tl.constexpr):
    """First and last key that the queries at positions t may see."""
    first = tl.maximum(t - window + 1, 0)
    last = t
    if not CAUSAL:
        last = tl.minimum(t + window - 1, S - 1)
    return first, last


@triton.jit
def visible(
    t, j, window, ids, first, ranks, S, CAUSAL: tl.constexpr, SEGMENTS: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """May the query at position t see the key at position j? Both broadcast; `ids` are the segments of a sequence, and
    `ranks` the places of its keys in their documents, of which the first ones are always seen."""
    if CAUSAL:
        seen = (t - j).to(tl.uint32) < window.to(tl.uint32)  # negative wraps to a large number: one comparison, not two
    else:
        nearest, last = visible_range(t, window, S, CAUSAL)
        seen = (j >= nearest) & (j <= last)
    if FIRST:
        rank = j
        if SEGMENTS:
            rank = tl.load(ranks + j, mask=(j >= 0) & (j < S), other=1 << 30)
        early = (rank < first) & (j < S)
        if CAUSAL:
            early = early & (j <= t)
        seen = seen | early
    if SEGMENTS:
        ours = tl.load(ids + t, mask=(t >= 0) & (t < S), other=-1)
        theirs = tl.load(ids + j, mask=(j >= 0) & (j < S), other=-2)
        seen = seen & (ours == theirs) & (ours >= 0)
    return seen


@triton.jit
def head_options(windows, decays, slopes, h, DECAY: tl.constexpr, SLOPE: tl.constexpr):
    """Window, decay and slope of a head."""
    decay, slope = rates_of(decays, slopes, h, DECAY, SLOPE)
    return tl.load(windows + h), decay, slope


@triton.jit
def rates_of(decays, slopes, h, DECAY: tl.constexpr, SLOPE: tl.constexpr):
    """Decay and slope of one head, or of several."""
    decay, slope = 0.0, 0.0
    if DECAY:
        decay = tl.load(decays + h)
    if SLOPE:
        slope = tl.load(slopes + h)
    return decay, slope


@triton.jit
def fading(t, j, border, decay, FADE: tl.constexpr):
    """exp(-decay |t - j|), split into a factor for the query and one for the key, for keys on one side of their query.

    FADE is 1 for keys up to the query and -1 for keys from it on. A tile then needs one exponential per row and column,
    not one per element. `border` is where the tile begins in the direction of the walk: the factor in that direction
    is the same in every tile and is computed before the walk.
    A key on the other side, which a causal mask hides, has a factor above 1, but finite, as the decay is at most FADES.
    """
    rate = decay * (FADE * LOG2E)
    return tl.exp2(-rate * (t - border).to(tl.float32)), tl.exp2(rate * (j - border).to(tl.float32))


@triton.jit
def scores(logits, t, j, decay, slope, softcap, DECAY: tl.constexpr, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr):
    """x of the definition, before the mask, and dx / dlogits; t and j broadcast to the shape of the logits."""
    x = logits
    derivative = tl.full(x.shape, 1.0, tl.float32)
    distance = tl.abs(t - j).to(tl.float32)
    if DECAY:
        derivative = tl.exp2(-decay * LOG2E * distance)
        x = x * derivative
    if SOFTCAP:
        tanh = 2.0 * tl.sigmoid(2.0 * x / softcap) - 1.0
        x = softcap * tanh
        derivative = derivative * (1.0 - tanh * tanh)
    if SLOPE:
        x = x - slope * distance
    return x, derivative
