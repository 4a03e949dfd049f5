"""Pieces of the experiments' figures: lines, cells, and the curves of runs, in the report's colours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from experiments.engine.measures import perplexity
from longshort.report.charts import drawing, log_ticks
from longshort.report.figures import frame
from longshort.report.theme import DASHES, LIGHT, method_styles

SIZE = 250
"""Pixels of one panel's width."""
MOST_TICKS = 8


def lines(
    rows: Sequence[dict[str, Any]],
    *,
    x: str,
    y: str,
    x_title: str,
    y_title: str,
    names: Sequence[str],
    log: bool = False,
    log_x: bool = False,
    share: bool = False,
    points: bool = False,
    title: str = "",
    width: int = SIZE,
    height: int = 200,
) -> Any:
    """One line for each `series` (with `detail` apart, such as seeds); a row without a finite `y` leaves a gap. The
    axis of a share goes from 0 to 100 %.
    """
    alt = drawing()
    styles = method_styles(names, LIGHT)
    dashes = [style.dash for style in styles]
    colors = alt.Scale(domain=list(names), range=[style.color for style in styles])
    legend = alt.Legend(title=None, orient="right", symbolType="stroke")
    whole = {"scale": alt.Scale(domain=[0, 1]), "axis": alt.Axis(format=".0%", tickCount=5)}
    encoding = {
        "x": alt.X(f"{x}:Q", title=x_title, scale=_scale(log_x), axis=_axis(rows, x, log_x)),
        "y": alt.Y(
            f"{y}:Q",
            title=y_title,
            **(whole if share else {"scale": _scale(log, nice=not log), "axis": _axis(rows, y, log)}),
        ),
        "color": alt.Color("series:N", scale=colors, legend=legend),
        "detail": "detail:N",
    }
    if any(dash != DASHES[0] for dash in dashes):
        scale = alt.Scale(domain=list(names), range=dashes)
        encoding["strokeDash"] = alt.StrokeDash("series:N", scale=scale, legend=legend)
    chart = frame(rows).mark_line(point={"size": 30} if points else False, strokeWidth=1.8).encode(**encoding)
    return chart.properties(width=width, height=height, title=title)


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


def over_steps(data: dict[str, Any], names: Sequence[str], *, width: int, height: int) -> Any:
    """Both, side by side."""
    common: dict[str, Any] = {"x": "step", "x_title": "step", "names": names, "log": True}
    perplexities, logits = points(data["curves"])
    return drawing().hconcat(
        lines(perplexities, y="perplexity", y_title="validation perplexity", width=width, height=height, **common),
        lines(logits, y="logit", y_title="max |logit|", width=width, height=height, **common),
    )


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
    """A cell for each row, coloured by its `value`, numbers on the axes in their order, names in that of the rows; with
    the format `text`, what the field `label` holds, the value itself if none is named, stands in it.
    """
    alt = drawing()
    scale = alt.Scale(type="log" if log else "linear", **({"domain": list(domain)} if domain else {}))
    named = any(isinstance(row[x], str) and len(row[x]) > 6 for row in rows)  # too long to stand side by side
    axis = alt.Axis(labelAngle=-35 if named else 0, labelOverlap=False)
    base = frame(rows).encode(
        x=alt.X(f"{x}:O", title=x_title, sort=_order(rows, x), axis=axis),
        y=alt.Y(f"{y}:O", title=y_title, sort=_order(rows, y)),
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
    """The last |logit| of every head, a panel for each variant's first seed; their colours are to be shared."""
    axes: dict[str, Any] = {"x": "head", "y": "layer", "x_title": "head", "y_title": "layer"}
    panels = []
    for curve in curves:
        cells = [
            {"layer": layer, "head": head, "logit": value}
            for layer, values in enumerate(curve["last_logits"])
            for head, value in enumerate(values)
        ]
        if curve["seed"] == 0 and cells:
            about = {"value": "logit", "value_title": "max |logit|, at the end", "title": curve["variant"]}
            panels.append(heat(cells, **about, **axes, width=size, height=size))
    return panels


def _order(rows: Sequence[dict[str, Any]], field: str) -> list[Any]:
    """The values of an axis of cells."""
    values = list(dict.fromkeys(row[field] for row in rows))
    return sorted(values) if all(isinstance(value, (int, float)) for value in values) else values


def _axis(rows: Sequence[dict[str, Any]], field: str, log: bool) -> Any:
    """Ticks at the values themselves where they are few, else at round numbers; on a log scale no lines between."""
    numbers = sorted({row[field] for row in rows if row[field] is not None})
    if not log or not numbers:
        return drawing().Axis(format="~s", tickCount=5)
    few = len(numbers) <= MOST_TICKS and all(isinstance(n, int) or n < 0.1 for n in numbers)
    ticks = numbers if few else log_ticks(numbers[0], numbers[-1] * 1.001, (1, 2, 5))
    return drawing().Axis(format="~g", values=ticks)


def _scale(log: bool, *, nice: bool = False) -> Any:
    return drawing().Scale(type="log" if log else "linear", zero=False, nice=nice)
