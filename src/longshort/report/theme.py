"""The colours of the page and of every figure, light and dark, and the colour and dash of each method.

LS and plain attention alone have Okabe and Ito's blue and vermilion. The other colours were found by a search: any two
of a theme are at least 0.09 apart in OKLab, as seen with full colour vision and with simulated protanopia, deuteranopia
and tritanopia, and each has a contrast of at least 3 to 1 with its background.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
NOT_FINITE = "#e5268a"
"""For cells and marks of values that are not finite, on either background; no palette has it."""

LIGHT: dict[str, Any] = {
    "page": "#f6f6f3",
    "card": "#ffffff",
    "ink": "#1b1c1d",
    "muted": "#5c6066",
    "line": "#e3e3de",
    "accent": "#0072b2",
    "category": ["#0072b2", "#d55e00", "#1ca586", "#b57be8", "#624411", "#5b1327", "#031e80"],
    "aside": "#a9adb1",
    "ramp": ["#eef1f3", "#c5d9e3", "#8fbcd0", "#5799b8", "#30739a", "#1d4f77", "#13304f", "#0b1730"],
}
DARK: dict[str, Any] = {
    "page": "#121315",
    "card": "#1b1d20",
    "ink": "#e9e9e6",
    "muted": "#a3a8ae",
    "line": "#303338",
    "accent": "#5aaee8",
    "category": ["#4da3e0", "#f0803c", "#8eda92", "#a8569f", "#f4f152", "#cd424d", "#4ffded"],
    "aside": "#5b6066",
    "ramp": ["#22282d", "#23404f", "#2a5d75", "#3a7f9b", "#58a3bb", "#86c5d4", "#bce2e7", "#f0fafa"],
}
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [12, 4], [4, 2, 1, 2, 1, 2])
FAMILIES = (
    ("ls", "ls-smooth", "ls1", "ls2"),
    ("plain", "plain-flash", "plain-cudnn", "plain-fp32", "full"),
    ("layer-wise", "all-local"),
    ("qk-norm-head", "qk-norm-width", "qk-norm-plain", "ladder"),
    ("softcap", "qk-clip", "sigma-reparam", "one-full"),
    ("z-loss", "adagc"),
    ("las", "decay-only", "smoothing-only", "las-before"),
)
"""Methods that share a colour, in the order of `category`: long-short, plain, other windows, QK-norms, limits on the
logits, changes to loss or gradient, LaS. Within a family the dash tells methods apart. Ladders and single full layers
share colours with methods that no figure shows beside them.
"""
MOST_STRONG = 6
"""At most this many lines of a panel are coloured; a reader cannot tell more apart."""


class Style(NamedTuple):
    """How the lines of a method are drawn."""

    color: str
    dash: list[int]


def method_styles(names: Sequence[str], colors: dict[str, Any], *, strong: int | None = None) -> list[Style]:
    """The style of each name in one figure.

    A method looks the same in every figure. `ls-3e-3` has the colour of `ls`, and its dash if no other line of the
    figure has it. A name of no method takes a colour that the figure has left, never that of LS or plain attention.
    With `strong`, only that many lines keep their colours, LS and plain attention first; the others are grey.

    >>> [style.color for style in method_styles(["plain", "ls", "mine"], LIGHT)]
    ['#d55e00', '#0072b2', '#1ca586']
    """
    places = _places(names)
    order = sorted(range(len(names)), key=lambda i: (places[i][0] > 1, i))
    aside = set() if strong is None else set(order[strong:])
    palette = colors["category"]
    return [
        Style(colors["aside"] if i in aside else palette[family], DASHES[dash % len(DASHES)])
        for i, (family, dash) in enumerate(places)
    ]


def method_style(name: str, colors: dict[str, Any]) -> Style:
    """The style of a method that is named alone."""
    return method_styles([name], colors)[0]


def _places(names: Sequence[str]) -> list[tuple[int, int]]:
    """The colour and the dash of each name, as indices."""
    methods = [_method(name) for name in names]
    exact = {place for name, place in zip(names, methods, strict=True) if place is not None and _is_method(name)}
    free = [family for family in range(2, len(FAMILIES)) if all(m is None or m[0] != family for m in methods)]
    free = free or list(range(2, len(FAMILIES)))
    taken, places, unknown = set(exact), [], 0
    for name, method in zip(names, methods, strict=True):
        if method is None:
            place = free[unknown % len(free)], unknown // len(free)
            unknown += 1
        elif _is_method(name):
            place = method
        else:
            family, first = method
            dashes = [first, *range(len(DASHES))]
            place = next(((family, dash) for dash in dashes if (family, dash) not in taken), method)
        taken.add(place)
        places.append(place)
    return places


def _method(name: str) -> tuple[int, int] | None:
    """Family and place within it of the longest method with which the name begins; None for no method."""
    found = [
        (len(method), family, place)
        for family, methods in enumerate(FAMILIES)
        for place, method in enumerate(methods)
        if name == method or name.startswith(f"{method}-")
    ]
    return max(found)[1:] if found else None


def _is_method(name: str) -> bool:
    return any(name in methods for methods in FAMILIES)


def picture_config(category: Sequence[str] | None = None) -> dict[str, Any]:
    """The `config` of a picture by itself: light, on its own card, with room around it; `category` as below."""
    return vega_config(LIGHT, category) | {"background": LIGHT["card"], "padding": 20}


def vega_config(colors: dict[str, Any], category: Sequence[str] | None = None) -> dict[str, Any]:
    """Vega-Lite's `config` for one theme. The background stays transparent: the card shows through.

    `category` are the colours of a chart's names in their order; those of the theme if None.
    """
    axis = {
        "domain": False,
        "gridColor": colors["line"],
        "gridWidth": 1,
        "labelColor": colors["muted"],
        "labelFontSize": 11,
        "labelOverlap": "greedy",
        "labelPadding": 6,
        "labelSeparation": 8,
        "ticks": False,
        "titleColor": colors["muted"],
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    }
    legend = {"labelColor": colors["ink"], "titleColor": colors["muted"], "titleFontWeight": "normal"}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "axisX": {"grid": False, "domain": True, "domainColor": colors["line"], "tickCount": 6},
        "legend": {**legend, "labelFontSize": 12, "titleFontSize": 11, "symbolStrokeWidth": 2.5, "labelLimit": 320},
        "title": {"color": colors["ink"], "subtitleColor": colors["muted"], "fontSize": 15, "fontWeight": 600},
        "style": {"ring": {"stroke": colors["card"], "strokeWidth": 1.2}},
        "range": {"category": category or colors["category"], "heatmap": colors["ramp"], "ramp": colors["ramp"]},
    }
