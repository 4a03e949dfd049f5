"""Colours of the page and of the charts, light and dark. The page's style sheet takes its variables from here too.

The categorical colours start from Okabe and Ito's blue and vermilion. The others were searched for: any two of a theme
are at least 0.09 apart in OKLab as seen with simulated protanopia, deuteranopia and tritanopia, and each has a contrast
of 3 to 1 with its background. A seventh variant takes the first colour again, dashed.
"""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
NOT_FINITE = "#e5268a"
"""Cells and marks of values that are not finite; in no palette, on either background."""

LIGHT: dict[str, Any] = {
    "page": "#f6f6f3",
    "card": "#ffffff",
    "ink": "#1b1c1d",
    "muted": "#5c6066",
    "line": "#e3e3de",
    "accent": "#0072b2",
    "category": ["#0072b2", "#d55e00", "#739d83", "#543044", "#5d5a1f", "#0c4f80"],
    "ramp": ["#eef1f3", "#c5d9e3", "#8fbcd0", "#5799b8", "#30739a", "#1d4f77", "#13304f", "#0b1730"],
}
DARK: dict[str, Any] = {
    "page": "#121315",
    "card": "#1b1d20",
    "ink": "#e9e9e6",
    "muted": "#a3a8ae",
    "line": "#303338",
    "accent": "#5aaee8",
    "category": ["#4da3e0", "#f0803c", "#c7f5d9", "#c7316b", "#edd568", "#8fd0e7"],
    "ramp": ["#22282d", "#23404f", "#2a5d75", "#3a7f9b", "#58a3bb", "#86c5d4", "#bce2e7", "#f0fafa"],
}
DASHES = ([1, 0], [6, 3], [2, 2])


def vega_config(colors: dict[str, Any]) -> dict[str, Any]:
    """Vega-Lite's `config` for one theme. The background stays transparent: the card shows through."""
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
        "range": {"category": colors["category"], "heatmap": colors["ramp"], "ramp": colors["ramp"]},
    }
