"""The picture of a plan, layers by heads: as text for a terminal, and as a chart for the page and for files.

A colour and a letter stand for what a head sees: G for all earlier keys, a, b, c, ... for windows from the widest down,
alone or with the first keys of the sequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from longshort.files import write_atomically
from longshort.reach import Costs, LayerReach, costs
from longshort.report.seen import Sees, Windows, label, seen_by

if TYPE_CHECKING:
    from longshort.model import GPTConfig

COLUMNS = 80
FORMATS = (".png", ".svg", ".html")
TITLE = "What each head sees"
"""Begins the title of the files that `longshort show` writes, by which it knows them."""
MOST_LAYERS = 48
"""Layers that a terminal shows one by one."""
MOST_LABELLED = 16
"""Heads of a layer beside which a chart has room for numbers in its cells."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_GLOBAL = "#d55e00"
_WIDEST, _NARROWEST = (0, 74, 122), (188, 222, 240)
"""Local heads are blue, the wider the darker: readable on light and dark."""


class Kind(NamedTuple):
    """Heads that see alike."""

    letter: str
    color: str
    label: str


def kinds(plans: Windows) -> dict[Sees, Kind]:
    """The kind of each reach of a plan, global heads first, then from the widest window down.

    >>> [kind.letter + " " + kind.label for kind in kinds([[None, 16, (4, 8)]]).values()]
    ['G all', 'a 16', 'b 4 + 8']
    """
    widths = sorted({window for layer in plans for window in layer if window is not None}, key=_width, reverse=True)
    found: dict[Sees, Kind] = {}
    if any(window is None for layer in plans for window in layer):
        found[None] = Kind("G", _GLOBAL, label(None))
    for place, window in enumerate(widths):
        weight = place / max(len(widths) - 1, 1)
        mixed = (round(a + weight * (b - a)) for a, b in zip(_WIDEST, _NARROWEST, strict=True))
        letter = _LETTERS[min(place, len(_LETTERS) - 1)]
        found[window] = Kind(letter, "#{:02x}{:02x}{:02x}".format(*mixed), label(window))
    return found


def _width(sees: int | tuple[int, int]) -> tuple[int, ...]:
    return (sees, 0) if isinstance(sees, int) else (sum(sees), sees[0])


def _model_costs(model: GPTConfig, context: int, causal: bool) -> Costs:
    """What the attention of a model costs at a context, with a cache in bf16."""
    return costs(
        model.layer_reaches,
        context=context,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_features,
        causal=causal,
    )


def plan_text(model: GPTConfig, context: int | None = None, *, color: bool = False, causal: bool = True) -> str:
    """Layers downwards, heads to the right, what the signs mean, and what it costs beside full attention.

    With `causal=False` for a model whose tokens see what follows them, as a classifier's do.
    """
    context = model.context if context is None else context
    plans = [seen_by(plan) for plan in model.layer_plans]
    found = kinds(plans)
    drawn = _gathered(plans)
    margin = max(len(name) for name, _ in drawn) + 2
    spaced = margin + 2 * model.n_heads <= COLUMNS
    lines = []
    for name, layer in drawn:
        cells = [_cell(found[window], " " if spaced else "", color) for window in layer[:-1]]
        cells.append(_cell(found[layer[-1]], "", color))
        room = COLUMNS - margin
        rows = [cells[i : i + room] for i in range(0, len(cells), room)]
        heads = [name.ljust(margin), *[" " * margin] * (len(rows) - 1)]
        lines += [head + "".join(row) for head, row in zip(heads, rows, strict=True)]
    counts = Counter(window for layer in plans for window in layer)
    lines.append("")
    for window, kind in found.items():
        sees = _described(window, causal)
        of = f"{counts[window]:,} head{'s' if counts[window] > 1 else ''}"
        lines.append(f"{_cell(kind, '', color)}  {sees:26}{of:14}{_rotation(model, window is None)}".rstrip())
    if sinks := _sinks(model):
        lines.append(sinks)
    return "\n".join([*lines, "", *_costs_table(_model_costs(model, context, causal), context, causal)])


def _described(sees: Sees, causal: bool) -> str:
    if sees is None:
        return "all earlier keys" if causal else "all keys"
    first, window = ("", sees) if isinstance(sees, int) else (f"the first {sees[0]:,} and ", sees[1])
    if not causal:
        return f"{first}{window - 1:,} keys to each side"
    return f"{first}{window:,} keys" if first else f"a window of {window:,} keys"


def _gathered(plans: Windows) -> list[tuple[str, Sequence[Sees]]]:
    """Each layer by its name; in a deep model, neighbours that are alike together."""
    if len(plans) <= MOST_LAYERS:
        return [(f"layer {number}", layer) for number, layer in enumerate(plans)]
    found, first = [], 0
    for layer, alike in groupby(plans):
        last = first + len(list(alike)) - 1
        found.append((f"layer {first}" if first == last else f"layers {first}-{last}", layer))
        first = last + 1
    return found


def plan_chart(plans: Windows, title: str | None = None, subtitle: list[str] | None = None) -> dict[str, Any]:
    """The same as a Vega-Lite specification with its data."""
    from longshort.report.charts import WIDTH, drawing, without_theme

    alt = drawing()
    found = kinds(plans)
    rows = [
        {"layer": layer, "head": head, "sees": found[window].label}
        for layer, windows in enumerate(plans)
        for head, window in enumerate(windows)
    ]
    scale = alt.Scale(domain=[kind.label for kind in found.values()], range=[kind.color for kind in found.values()])
    across = alt.X(
        "head:O", title="head", axis=alt.Axis(labelAngle=0, orient="top"), scale=alt.Scale(paddingInner=0.06)
    )
    down = alt.Y("layer:O", title="layer", scale=alt.Scale(paddingInner=0.06))
    legend = alt.Legend(title="sees", orient="bottom", columns=8, symbolType="square")
    tips = [alt.Tooltip(f"{name}:N", title=name) for name in ("layer", "head", "sees")]
    base = alt.Chart(alt.NamedData(name="plan")).encode(x=across, y=down)
    chart = base.mark_rect().encode(color=alt.Color("sees:N", scale=scale, legend=legend), tooltip=tips)
    heads = max(map(len, plans))
    if heads <= MOST_LABELLED:
        dark = [kind.label for kind in found.values() if not _is_light(kind.color)]
        ink = alt.condition(alt.FieldOneOfPredicate("sees", dark), alt.value("#ffffff"), alt.value("#1b1c1d"))
        chart = alt.layer(chart, base.mark_text(fontSize=10).encode(text="sees:N", color=ink))
    height = max(8, min(24, 640 // len(plans))) * len(plans)
    chart = chart.properties(width=min(WIDTH, max(480, 44 * heads)) if title else WIDTH, height=height)
    if title:
        text = {"anchor": "start", "offset": 14} | ({"subtitle": subtitle} if subtitle else {})
        chart = chart.properties(title=alt.TitleParams(title, **text))
    return without_theme(chart) | {"datasets": {"plan": rows}}


def write_plan(model: GPTConfig, path: Path, *, title: str, context: int | None = None, causal: bool = True) -> Path:
    """Draw the plan of a model into a PNG, SVG or HTML file; `causal` is as in `plan_text`."""
    from longshort.report.charts import ReportError, drawing
    from longshort.report.pictures import drawn, vegalite, with_text
    from longshort.report.theme import picture_config

    if path.suffix not in FORMATS:
        raise ReportError(f"--out must end in {', '.join(FORMATS)}, got {path}")
    drawing()
    import vl_convert

    context = model.context if context is None else context
    found = _model_costs(model, context, causal)
    costs_line = (
        f"At {context:,} tokens: {found.visible_keys:,.0f} keys per token and head, "
        f"{found.share:.1%} of full attention's FLOPs{f', {found.cache_share:.1%} of its cache' if causal else ''}"
    )
    subtitle = [line for line in (costs_line, _sinks(model)) if line]
    spec = plan_chart([seen_by(plan) for plan in model.layer_plans], title, subtitle) | {"config": picture_config()}
    if path.suffix == ".png":  # with its title as text, as SVG and HTML have it anyway
        return write_atomically(path, with_text(drawn(spec), "Title", title))
    if path.suffix == ".svg":
        return write_atomically(path, vl_convert.vegalite_to_svg(spec, vl_version=vegalite()))
    return write_atomically(path, vl_convert.vegalite_to_html(spec, vl_version=vegalite(), bundle=True))


def _cell(kind: Kind, gap: str, color: bool) -> str:
    if not color:
        return f"{kind.letter}{gap}"
    red, green, blue = _rgb(kind.color)
    ink = 30 if _is_light(kind.color) else 97
    return f"\x1b[{ink};48;2;{red};{green};{blue}m{kind.letter}{gap}\x1b[0m"


def _is_light(color: str) -> bool:
    red, green, blue = _rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _rotation(model: GPTConfig, is_global: bool) -> str:
    """How the global or local heads of the layers that have such are rotated; empty without rotary positions."""
    if model.positions != "rotary":
        return ""
    said = [
        _said(layer, is_global, model.rope_theta)
        for layer in model.layer_reaches
        if any((window is None) == is_global for window in layer.plan.windows)
    ]
    return " or ".join(dict.fromkeys(said))


def _said(layer: LayerReach, is_global: bool, theta: float) -> str:
    base, share = (layer.global_base, layer.global_share) if is_global else (layer.local_base, layer.local_share)
    if not share:
        return "not rotated"
    part = "" if share == 1 else f" on {share:.0%}"
    return f"base {base or theta:,.0f}{part}"


def _sinks(model: GPTConfig) -> str:
    """Which layers have learned sinks; empty if none."""
    layers = model.layer_reaches
    sunk = [layer.sink != "none" for layer in layers]
    if not any(sunk):
        return ""
    where = f"{sum(sunk)} of {len(layers)} layers"
    if all(sunk):
        where = "every layer"
    elif sunk == [any(layer.plan.windows) for layer in layers]:
        where = "every layer with local heads"
    return f"Learned sinks in {where}"


def _costs_table(found: Costs, context: int, causal: bool) -> list[str]:
    rows = [
        ("visible keys per token and head", found.visible_keys, found.full_visible_keys, _count),
        ("cache per token, bf16", found.cache_bytes, found.full_cache_bytes, _bytes),
        ("attention FLOPs per token, forward", found.flops, found.full_flops, _count),
    ]
    if not causal:
        del rows[1]
    lines = [f"{f'at {context:,} tokens':36}{'this plan':>12}{'full':>12}{'share':>10}"]
    return lines + [f"{name:36}{form(own):>12}{form(full):>12}{own / full:>10.1%}" for name, own, full, form in rows]


def _count(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f}"


def _bytes(value: float) -> str:
    for size, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f} B"
