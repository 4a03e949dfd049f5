"""Pathfinder (Linsley et al., arXiv 1805.08315) at 32 x 32, as in Long Range Arena (arXiv 2011.04006).

Two long dashed curves wind among shorter ones; two dots mark ends of long curves. Are the dots on the same curve? The
numbers below are the published ones. The paper does not specify how a curve winds, nor the clearances. Here a curve
turns at each dash by a normally distributed angle, and distinct curves keep more distance than the dashes of one curve,
so that every picture has exactly one right answer. Lengths are in pixels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshort.data.tasks.recall import generator

SIDE, DASH, GAP, THICKNESS = 32, 2.0, 1.0, 0.5
DOT_RADIUS, CONTRAST, SEED_DISTANCE, DISTRACTOR_DASHES = 1.5, 0.75, 7.0, 20
VOCAB_SIZE, N_CLASSES = 256, 2
MARGIN, CLEARANCE, DOT_CLEARANCE = 1.0, 2.0, 3.25
"""Distances from the border, between the centre lines of dashes of two curves, and from the centre of a dot to the
centre line of a dash of another curve. The last two leave a pixel and a half of black."""
TURN, SHARPEST_TURN = 0.35, 0.9
"""Standard deviation and bound of the turn at a dash, in radians."""
_TRIES, _STARTS = 8, 100
_REACH = DASH + CLEARANCE + 0.1
"""Dashes whose centres are farther apart than this keep the clearance despite rounding."""
_SUBPIXELS = 4

Points = NDArray[np.float64]


class Scene(NamedTuple):
    """The coordinates of everything; y first, as in the picture."""

    dashes: Points
    """(dashes, 2, 2): both ends of each dash, in pixels"""
    curves: NDArray[np.int64]
    """(dashes,): the curve of each dash; 0 and 1 are the long ones"""
    dots: Points
    """(2, 2)"""
    joined: bool


def draw(key: str, *, paddles: int) -> tuple[NDArray[Any], int]:
    """One picture, chosen by the key, as (its 1,024 pixels row by row, 1 if the dots are joined, else 0)."""
    scene = draw_scene(key, paddles=paddles)
    return picture(scene).reshape(-1), int(scene.joined)


def draw_scene(key: str, *, paddles: int) -> Scene:
    """Curves and dots. The answer is chosen before anything is drawn, so that failed attempts cannot bias it."""
    source = generator(key)
    joined = bool(source.integers(2))
    while True:
        scene = _attempt(source, paddles, joined)
        if scene is not None:
            return scene


def _attempt(source: np.random.Generator, paddles: int, joined: bool) -> Scene | None:
    first = _curve(source, paddles, np.zeros((0, 2, 2)))
    second = None if first is None else _curve(source, paddles, first, away_from=first[0, 0])
    if first is None or second is None:
        return None
    # Both ends of the first curve, or an end of each.
    dots = np.stack((first[0, 0], first[-1, 1] if joined else second[0, 0]))
    clear = _to_segments(dots[:1], second).min() >= DOT_CLEARANCE
    clear &= _to_segments(dots[1:], second if joined else first).min() >= DOT_CLEARANCE
    if not clear or np.linalg.norm(dots[0] - dots[1]) < SEED_DISTANCE:
        return None
    curves = [first, second]
    placed = np.concatenate(curves)
    short = max(2, paddles // 3)
    for _ in range(DISTRACTOR_DASHES // short):
        curve = _curve(source, short, placed, dots=dots)
        if curve is None:
            return None
        curves.append(curve)
        placed = np.concatenate((placed, curve))
    numbers = np.repeat(np.arange(len(curves)), [len(curve) for curve in curves])
    return Scene(placed, numbers, dots, joined)


def _curve(
    source: np.random.Generator,
    dashes: int,
    others: Points,
    *,
    away_from: Points | None = None,
    dots: Points | None = None,
) -> Points | None:
    """A curve clear of all others, (dashes, 2, 2), or None if a number of attempts found none."""
    starts = source.uniform(MARGIN, SIDE - MARGIN, size=(_STARTS, 2))
    free = _to_segments(starts, others).min(1, initial=SIDE) >= CLEARANCE
    if away_from is not None:
        free &= np.linalg.norm(starts - away_from, axis=1) >= SEED_DISTANCE
    for start in starts[free]:
        curve = _walk(source, start, dashes, others, dots)
        if curve is not None:
            return curve
    return None


def _walk(
    source: np.random.Generator, start: Points, dashes: int, others: Points, dots: Points | None
) -> Points | None:
    """Place dash after dash, each turned a little from the one before, and retry those that do not fit."""
    there = np.concatenate((others, np.zeros((dashes, 2, 2))))
    made = there[len(others) :]
    angles, end = np.array([source.uniform(0, 2 * math.pi)]), start
    heading = _directions(angles)[0]
    for number in range(dashes):
        turns = np.minimum(np.maximum(source.normal(0, TURN, size=_TRIES), -SHARPEST_TURN), SHARPEST_TURN)
        angles = angles + turns if number else angles
        onwards = _directions(angles)
        candidates = np.empty((len(onwards), 2, 2))
        # Half of the gap is along the old direction and half along the new one, so it is never wider than GAP.
        candidates[:, 0] = end + GAP / 2 * (heading + onwards) if number else start
        candidates[:, 1] = candidates[:, 0] + DASH * onwards
        chosen = _first_with_room(candidates, there[: len(others) + max(0, number - 1)], dots)
        if chosen is None:
            return None
        made[number], angles = candidates[chosen], angles[chosen : chosen + 1]
        heading, end = onwards[chosen], made[number, 1]
    return made


def _directions(angles: Points) -> Points:
    directions = np.empty((len(angles), 2))
    directions[:, 0], directions[:, 1] = np.sin(angles), np.cos(angles)
    return directions


def _first_with_room(candidates: Points, there: Points, dots: Points | None) -> int | None:
    """The first of some dashes, (candidates, 2, 2), that is inside the picture and clear of those already placed.

    If two dashes cross, an end of one is within half a dash of the other, so checking ends against dashes is enough.
    """
    room = ((candidates >= MARGIN) & (candidates <= SIDE - MARGIN)).reshape(-1, 4).all(1)
    if dots is not None:
        room &= _to_segments(dots, candidates).min(0) >= DOT_CLEARANCE
    near = _within_reach(there, candidates)
    if len(near):
        theirs = _to_segments(near.reshape(-1, 2), candidates).min(0)
        ours = _to_segments(candidates.reshape(-1, 2), near).min(1).reshape(-1, 2).min(1)
        room &= (theirs >= CLEARANCE) & (ours >= CLEARANCE)
    found = np.flatnonzero(room)
    return int(found[0]) if len(found) else None


def _within_reach(dashes: Points, candidates: Points) -> Points:
    """The dashes that may be too close to a candidate: usually none, which saves computing distances."""
    ends = candidates[:, 0] + candidates[:, 1]
    apart = dashes[:, 0] + dashes[:, 1] - ends[:, None]  # twice the vector between their centres
    near = np.einsum("cdx,cdx->cd", apart, apart) < (2 * _REACH) ** 2
    return dashes[near.any(0)]


def _to_segments(points: Points, segments: Points) -> Points:
    """(points, segments): the distance of each point from each segment."""
    return _distance(points[:, None] - segments[:, 0], segments[:, 1] - segments[:, 0])


def _distance(away: Points, along: Points) -> Points:
    """Distance of points from a segment along `along`; `away` (..., 2) is their offset from its start."""
    share = np.einsum("...x,...x->...", away, along) / np.einsum("...x,...x->...", along, along)
    apart = away - np.minimum(np.maximum(share, 0), 1)[..., None] * along
    return np.sqrt(np.einsum("...x,...x->...", apart, apart))


def picture(scene: Scene) -> NDArray[np.uint8]:
    """(32, 32) grey values: dashes at the contrast, dots white, edges smoothed by averaging subpixels."""
    coarse = rendered(scene, subpixels=_SUBPIXELS).reshape(SIDE, _SUBPIXELS, SIDE, _SUBPIXELS).mean((1, 3))
    return np.round(255 * coarse).astype(np.uint8)


def rendered(scene: Scene, *, subpixels: int) -> Points:
    """(32 * subpixels, 32 * subpixels): the value at the centre of each subpixel: 0, the contrast, or 1."""
    size = SIDE * subpixels
    canvas = np.zeros((size, size))
    reach = math.ceil((DASH / 2 + THICKNESS) * subpixels) + 1
    patch = np.stack(np.meshgrid(*(np.arange(-reach, reach + 1),) * 2, indexing="ij"), -1).reshape(-1, 2)
    begins, alongs = scene.dashes[:, 0, None], scene.dashes[:, 1, None] - scene.dashes[:, 0, None]
    cells = np.floor(scene.dashes.mean(1) * subpixels).astype(int)[:, None] + patch  # the cells around each dash
    inside = cells[_distance((cells + 0.5) / subpixels - begins, alongs) <= THICKNESS / 2]
    inside = inside[((inside >= 0) & (inside < size)).all(1)]
    canvas[inside[:, 0], inside[:, 1]] = CONTRAST
    rows, columns = np.ogrid[:size, :size]
    for y, x in scene.dots:
        away = np.hypot((rows + 0.5) / subpixels - y, (columns + 0.5) / subpixels - x)
        canvas[away <= DOT_RADIUS] = 1.0
    return canvas
