"""Pathfinder against a flood fill: are the dots joined, once the gaps between dashes are closed?"""

import numpy as np
import pytest

from longshort.data.tasks import pathfinder

FINE = 10
"""Subpixels to a pixel."""
CLOSING = 0.6
"""Pixels that the flood steps over to each side: more than half a gap, less than half the way to another curve."""


def spread(mask, radius):
    """Every place within `radius` of a marked one."""
    grown = mask.copy()
    for dy in range(-radius, radius + 1):
        width = int((radius**2 - dy**2) ** 0.5)
        for dx in range(-width, width + 1):
            grown |= np.roll(mask, (dy, dx), (0, 1))
    return grown


def flood(mask, start):
    """The part of the mask that is joined to `start`, by steps to the four neighbours."""
    reached = np.zeros_like(mask)
    front = [start]
    while front:
        y, x = front.pop()
        if 0 <= y < len(mask) and 0 <= x < len(mask) and mask[y, x] and not reached[y, x]:
            reached[y, x] = True
            front += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
    return reached


def joined_by_flood(scene):
    canvas = pathfinder.rendered(scene, subpixels=FINE)
    reached = flood(spread(canvas > 0, round(CLOSING * FINE)), tuple((scene.dots[0] * FINE).astype(int)))
    return bool(reached[tuple((scene.dots[1] * FINE).astype(int))])


@pytest.mark.parametrize(("paddles", "count"), [(6, 8), (9, 8), (14, 4)])
def test_the_label_is_that_of_a_flood_fill(paddles, count):
    scenes = [pathfinder.draw_scene(f"test/{number}", paddles=paddles) for number in range(count)]
    assert [joined_by_flood(scene) for scene in scenes] == [scene.joined for scene in scenes]
    assert {scene.joined for scene in scenes} == {True, False}


def test_a_scene_has_two_long_curves_and_short_ones_in_the_published_numbers():
    scene = pathfinder.draw_scene("numbers", paddles=9)
    assert np.bincount(scene.curves).tolist() == [9, 9, *[3] * 6]
    assert np.linalg.norm(scene.dashes[:, 1] - scene.dashes[:, 0], axis=1) == pytest.approx(2.0)
    assert np.linalg.norm(scene.dots[0] - scene.dots[1]) >= 7


def test_dashes_of_a_curve_follow_at_a_gap_of_at_most_one_pixel():
    scene = pathfinder.draw_scene("gaps", paddles=9)
    for curve in range(scene.curves.max() + 1):
        dashes = scene.dashes[scene.curves == curve]
        assert np.linalg.norm(dashes[1:, 0] - dashes[:-1, 1], axis=1).max() <= 1 + 1e-9


@pytest.mark.parametrize("paddles", [6, 14])
def test_dashes_of_two_curves_keep_the_clearance(paddles):
    for number in range(3):
        scene = pathfinder.draw_scene(f"clearance/{number}", paddles=paddles)
        steps = np.linspace(0, 1, 21)[:, None]
        places = scene.dashes[:, None, 0] + steps * (scene.dashes[:, None, 1] - scene.dashes[:, None, 0])
        apart = np.linalg.norm(places[:, None, :, None] - places[None, :, None], axis=-1).min((2, 3))
        two = scene.curves[:, None] != scene.curves
        assert pathfinder.CLEARANCE - 1e-9 <= apart[two].min() < pathfinder.CLEARANCE + 1


def test_pixels_are_grey_with_white_dots():
    pixels, label = pathfinder.draw("picture", paddles=6)
    scene = pathfinder.draw_scene("picture", paddles=6)
    assert pixels.shape == (1024,) and pixels.dtype == np.uint8 and label == scene.joined
    picture = pixels.reshape(32, 32)
    assert all(picture[tuple(dot.astype(int))] == 255 for dot in scene.dots)
    assert 0.02 < (picture > 0).mean() < 0.5


def test_labels_are_balanced():
    labels = [pathfinder.generator(f"balance/{number}").integers(2) for number in range(400)]
    assert 160 < sum(labels) < 240
