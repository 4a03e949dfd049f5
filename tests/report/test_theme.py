"""One colour per method in every figure, told apart with every kind of colour vision, readable on its background."""

import itertools

import numpy as np
import pytest

from longshort.report.theme import DARK, DASHES, FAMILIES, LIGHT, method_style, method_styles
from longshort.train.sweeps.variants import VARIANTS

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    ) @ np.clip(rgb, 0, 1)
    return np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    ) @ np.cbrt(cones)


def contrast(a, b):
    dark, light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) + 0.05 for color in (a, b))
    return light / dark


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_any_two_families_are_told_apart(colors, vision):
    seen = [oklab(VISION[vision] @ linear(color)) for color in colors["category"]]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) >= 0.09


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_its_background(colors):
    assert min(contrast(color, colors["card"]) for color in colors["category"]) >= 3
    assert contrast(colors["aside"], colors["card"]) < min(contrast(c, colors["card"]) for c in colors["category"])


def test_there_is_a_colour_for_each_family():
    assert len(FAMILIES) == len(LIGHT["category"]) == len(DARK["category"])
    assert max(len(methods) for methods in FAMILIES) <= len(DASHES)


def test_every_variant_has_a_style_of_its_own_that_no_other_method_changes():
    styles = method_styles(list(VARIANTS), LIGHT)
    assert len({(style.color, tuple(style.dash)) for style in styles}) == len(VARIANTS)
    assert styles == [method_style(name, LIGHT) for name in VARIANTS]
    assert method_styles(list(VARIANTS)[::-1], LIGHT) == styles[::-1]


def test_long_short_and_plain_attention_have_the_two_strong_colours():
    assert [style.color for style in method_styles(["plain", "ls"], DARK)] == [DARK["category"][1], DARK["category"][0]]


def test_a_method_at_several_settings_keeps_its_colour_and_changes_its_dash():
    styles = method_styles(["ls-6e-4", "ls-3e-3", "plain-6e-4"], LIGHT)
    assert [style.color for style in styles] == [LIGHT["category"][i] for i in (0, 0, 1)]
    assert [style.dash for style in styles] == [DASHES[0], DASHES[1], DASHES[0]]


def test_a_setting_leaves_the_dash_of_the_method_itself_alone():
    first, ls = method_styles(["ls-6e-4", "ls"], LIGHT)
    assert ls.dash == DASHES[0]
    assert first.dash != ls.dash


def test_unknown_names_never_look_like_long_short_or_plain_attention():
    styles = method_styles([f"mine{i}" for i in range(20)], LIGHT)
    assert not {style.color for style in styles} & set(LIGHT["category"][:2])
    assert len({(style.color, tuple(style.dash)) for style in styles}) == 20


def test_unknown_names_take_the_colours_that_the_figure_has_left():
    known, mine = method_styles(["layer-wise", "mine"], LIGHT)
    assert (known.color, mine.color) == (LIGHT["category"][2], LIGHT["category"][3])


def test_of_many_lines_six_are_strong_and_long_short_and_plain_attention_among_them():
    names = [*[name for name in VARIANTS if name not in ("ls", "plain")], "plain", "ls"]
    styles = method_styles(names, LIGHT, strong=6)
    assert sum(style.color != LIGHT["aside"] for style in styles) == 6
    assert [style.color for style in styles[-2:]] == [LIGHT["category"][1], LIGHT["category"][0]]
