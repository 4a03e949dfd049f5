"""Pieces of the experiments' figures: lines, cells, and the curves of runs, in the report's colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.engine.comparison import losses_by_seed
from experiments.engine.measures import perplexity
from longshort.report.charts import drawing, labelled, log_ticks
from longshort.report.figures import frame
from longshort.report.theme import DASHES, LIGHT, method_styles

SIZE = 250
"""Width of one panel in pixels; a page scales down figures that are wider than about 900."""
MOST_TICKS = 8
OTHERS = "others"
"""The series of grey lines: no panel has more than six lines in colours."""


def lines(
    rows: Sequence[dict[str, Any]],
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str | None,
    names: Sequence[str],
    log: bool = False,
    log_x: bool = False,
    share: bool = False,
    points: bool = False,
    ordered: bool = False,
    each_seed: bool = False,
    beside: Sequence[dict[str, Any]] = (),
    together: Sequence[str] = (),
    title: str = "",
    width: int = SIZE,
    height: int = 200,
) -> Any:
    """One line per `series`; a row without a finite `y` leaves a gap.

    Where all seeds (`detail`) of a series have the same `x`, the line is their mean, with bars (`points`) or a band
    from the lowest to the highest, or from `low` to `high` where rows have them; otherwise, and with `each_seed`, each
    seed has a thin line. The axis of a `share` goes from 0 to 100 %. Names that are steps of one quantity are
    `ordered`, and coloured from light to dark. Panels that share a y axis are given each other's rows (`beside`), and
    so get the same ticks. Panels whose names differ are given the names of all (`together`), and so draw a name alike.
    """
    alt = drawing()
    every = list(together or names)
    styles = dict(zip(every, zip(*_styles(every, ordered=ordered), strict=True), strict=True))
    colors, dashes = [styles[name][0] for name in names], [styles[name][1] for name in names]
    legend = alt.Legend(
        title=None,
        orient="bottom",
        symbolType="stroke",
        symbolSize=450,
        symbolOpacity=1,
        columns=_columns(names, width),
    )
    whole = {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format=".0%", tickCount=5)}
    encoding = {
        "x": alt.X(f"{x}:Q", title=x_title, scale=_scale(log_x), axis=_axis(rows, x, log_x)),
        "y": alt.Y(
            f"{y}:Q",
            title=y_title,
            **(whole if share else {"scale": _scale(log, nice=not log), "axis": _axis([*rows, *beside], y, log)}),
        ),
        "color": alt.Color("series:N", scale=alt.Scale(domain=list(names), range=colors), legend=legend),
    }
    spread, means, single = _summed(rows, x, y, each_seed=each_seed)
    marks = dict(encoding, detail="detail:N")
    if any(dash != DASHES[0] for dash in dashes):
        scale = alt.Scale(domain=list(names), range=dashes)
        marks["strokeDash"] = alt.StrokeDash("series:N", scale=scale, legend=legend)
    layers = []
    if spread:
        ends = {**encoding, "y": alt.Y("low:Q", title=y_title), "y2": alt.Y2("high:Q")}
        marked = frame(spread)
        bars = marked.mark_rule(strokeWidth=1.4) if points else marked.mark_area(opacity=0.22)
        bars = bars.encode(**ends)
        layers.append(bars)
    layers.append(frame(means).mark_line(point={"size": 30} if points else False, strokeWidth=1.8).encode(**marks))
    if single:
        layers.append(frame(single).mark_line(strokeWidth=1.0, opacity=0.8).encode(**marks))
    chart = layers[0] if len(layers) == 1 else alt.layer(*layers)
    return chart.properties(width=width, height=height, title=title)


def _columns(names: Sequence[str], width: int) -> int:
    """How many names fit side by side below a panel of this width."""
    return max(2, int(1.3 * width // (7 * max(map(len, names), default=1) + 34)))


def _styles(names: Sequence[str], *, ordered: bool) -> tuple[list[str], list[list[int]]]:
    if ordered:
        ramp = LIGHT["ramp"][2:]
        steps = [ramp[round(i * (len(ramp) - 1) / max(len(names) - 1, 1))] for i in range(len(names))]
        return steps, [DASHES[0]] * len(names)
    styles = method_styles(names, LIGHT)
    colors = [LIGHT["aside"] if n == OTHERS else style.color for n, style in zip(names, styles, strict=True)]
    return colors, [DASHES[0] if n == OTHERS else style.dash for n, style in zip(names, styles, strict=True)]


def _summed(rows: Sequence[dict[str, Any]], x: str, y: str, *, each_seed: bool) -> tuple[list[dict[str, Any]], ...]:
    """The ends of bands or bars, the means, and the lines of single seeds."""
    by_series: dict[str, dict[Any, list[dict[str, Any]]]] = {}
    for row in rows:
        by_series.setdefault(row["series"], {}).setdefault(row[x], []).append(row)
    spread: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    single: list[dict[str, Any]] = []
    for series, places in by_series.items():
        seeds = {row["detail"] for found in places.values() for row in found}
        if each_seed or series == OTHERS or any(len(found) != len(seeds) for found in places.values()):
            (means if len(seeds) == 1 else single).extend(row for found in places.values() for row in found)
            continue
        for place, found in places.items():
            values = [row[y] for row in found]
            finite = [value for value in values if value is not None]
            mean = sum(finite) / len(finite) if len(finite) == len(values) else None
            means.append({**found[0], "detail": "", x: place, y: mean})
            if mean is None:
                continue
            ends = (found[0].get("low"), found[0].get("high")) if len(found) == 1 else (min(finite), max(finite))
            if ends[0] is not None:
                spread.append({**found[0], "detail": "", x: place, "low": ends[0], "high": ends[1]})
    return spread, means, single


def points(
    curves: Iterable[dict[str, Any]], *, series: Callable[[str], str] = lambda variant: variant
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Validation perplexity and largest |logit| over steps, for `lines`; `series` names what a variant belongs to."""
    perplexities, logits = [], []
    for curve in curves:
        named = {"series": series(curve["variant"]), "detail": str(curve["seed"])}
        for step, loss in curve["validation"]:
            perplexities.append({**named, "step": step, "perplexity": perplexity(loss)})
        logits += [{**named, "step": step, "logit": value} for step, value in curve["logits"]]
    return perplexities, logits


def over_steps(
    data: dict[str, Any], names: Sequence[str], *, width: int, height: int, each_seed: bool = False
) -> list[Any]:
    """Validation perplexity and largest |logit| over steps, as two panels to stand side by side."""
    common: dict[str, Any] = {"x": "step", "x_title": "step", "names": names, "log": True, "each_seed": each_seed}
    perplexities, logits = points(data["curves"])
    return [
        lines(perplexities, y="perplexity", y_title="validation perplexity", width=width, height=height, **common),
        lines(logits, y="logit", y_title="max |logit|", width=width, height=height, **common),
    ]


def heat(
    rows: Sequence[dict[str, Any]],
    *,
    x: str,
    y: str,
    value: str,
    value_title: str,
    x_title: str,
    y_title: str,
    title: str = "",
    log: bool = True,
    text: str | None = None,
    label: str | None = None,
    width: int = SIZE,
    height: int = 200,
    domain: tuple[float, float] | None = None,
) -> Any:
    """One cell per row, coloured by its `value`. Numbers on the axes are sorted, names keep the order of the rows. With
    a format `text`, each cell shows its field `label`, or its value if no field is named.
    """
    alt = drawing()
    scale = alt.Scale(type="log" if log else "linear", **({"domain": list(domain)} if domain else {}))
    named = any(isinstance(row[x], str) and len(row[x]) > 6 for row in rows)  # too long to stand side by side
    axis = alt.Axis(labelAngle=-35 if named else 0, labelOverlap=False)
    base = frame(rows).encode(
        x=alt.X(f"{x}:O", title=x_title, sort=_order(rows, x), axis=axis),
        y=alt.Y(f"{y}:O", title=y_title, sort=_order(rows, y), axis=alt.Axis(labelOverlap=False)),
    )
    written = text if text is not None and text.endswith("%") else ",.3~r"  # not 584m for 58.4 %
    legend = alt.Legend(title=value_title, gradientLength=height - 30, format=written)
    cells = base.mark_rect().encode(color=alt.Color(f"{value}:Q", scale=scale, legend=legend))
    if text is None:
        return cells.properties(width=width, height=height, title=title)
    numbers = [row[value] for row in rows if row[value] is not None] or [1.0]
    middle = (max(numbers) * min(numbers)) ** 0.5 if log else (max(numbers) + min(numbers)) / 2
    ink = alt.condition(f"datum['{value}'] > {middle}", alt.value("white"), alt.value(LIGHT["ink"]))
    labels = base.mark_text(fontSize=10).encode(text=alt.Text(f"{label or value}:Q", format=text), color=ink)
    return (cells + labels).properties(width=width, height=height, title=title)


def heads(curves: Iterable[dict[str, Any]], *, size: int) -> list[Any]:
    """The last |logit| of every head, one panel for each variant's first seed; the caller shares their colours."""
    axes: dict[str, Any] = {"x": "head", "y": "layer", "x_title": "head", "y_title": "layer"}
    panels, seen = [], set()
    for curve in curves:
        cells = [
            {"layer": layer, "head": head, "logit": value}
            for layer, values in enumerate(curve["last_logits"])
            for head, value in enumerate(values)
        ]
        if curve["variant"] not in seen and cells:
            seen.add(curve["variant"])
            about = {"value": "logit", "value_title": "max |logit|, at the end", "title": curve["variant"]}
            panels.append(heat(cells, **about, **axes, width=size, height=size))
    return panels


def dots(rows: Sequence[dict[str, Any]], names: Sequence[str], *, x_title: str, width: int, height: int) -> Any:
    """The final perplexity of each variant, with a dot for each seed and the lowest on top."""
    alt = drawing()
    best = sorted((row for row in rows if row["final_perplexity"] is not None), key=lambda row: row["final_perplexity"])
    found = [
        {"variant": row["variant"], "perplexity": perplexity(loss), "seed": seed}
        for row in best
        for seed, loss in losses_by_seed(row).items()
    ]
    x = alt.X("perplexity:Q", title=x_title, scale=_scale(True), axis=_axis(found, "perplexity", True))
    y = alt.Y("variant:N", title=None, sort=[row["variant"] for row in best], axis=alt.Axis(labelOverlap=False))
    scale = alt.Scale(domain=list(names), range=[style.color for style in method_styles(names, LIGHT)])
    color = alt.Color("variant:N", scale=scale, legend=None)
    return (
        frame(found)
        .mark_point(filled=True, size=45)
        .encode(x=x, y=y, color=color)
        .properties(width=width, height=height)
    )


def _order(rows: Sequence[dict[str, Any]], field: str) -> list[Any]:
    """The values of an axis of cells, in order."""
    values = list(dict.fromkeys(row[field] for row in rows))
    return sorted(values) if all(isinstance(value, (int, float)) for value in values) else values


def _axis(rows: Sequence[dict[str, Any]], field: str, log: bool) -> Any:
    """Ticks at the values themselves where they are few, else round numbers; no lines between them on a log scale."""
    numbers = sorted({row[field] for row in rows if row[field] is not None})
    if not log or not numbers:
        return drawing().Axis(format=",~f", tickCount=5)
    few = len(numbers) <= MOST_TICKS and all(isinstance(n, int) or n < 0.1 for n in numbers)
    ticks = numbers if few else log_ticks(numbers[0], numbers[-1] * 1.001, (1, 2, 5))
    if numbers[-1] / numbers[0] > 1e4:
        ticks = log_ticks(numbers[0], numbers[-1] * 1.001, (1,))
    return drawing().Axis(**labelled(_spread(ticks)))


def _spread(ticks: Sequence[float]) -> list[float]:
    """At most `MOST_TICKS` of them."""
    return list(ticks)[:: -(-len(ticks) // MOST_TICKS)]


def _scale(log: bool, *, nice: bool = False) -> Any:
    return drawing().Scale(type="log" if log else "linear", zero=False, nice=nice)
