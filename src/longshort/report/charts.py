"""The charts, as Vega-Lite specifications made with Altair. They only name their data: the page holds it once for all
charts, and `with_data` adds it for a picture.

A specification has no colours: they come from `theme`, so that one chart serves light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longshort.report.datasets import MEASURES, Datasets, rows
from longshort.report.seen import label
from longshort.report.theme import DASHES, LIGHT, MOST_STRONG, NOT_FINITE, method_styles, picture_config
from longshort.runs import Run

if TYPE_CHECKING:
    import altair

WIDTH, HEIGHT = 760, 360
X_AXES = ("step", "tokens", "time")
LOSSES = ("loss", "perplexity")
EDGE = 8  # pixels below the upper edge, where marks without a finite value stand
READABLE_ROW = 9  # pixels
MAX_PICTURED_HEAT_MAPS = 4
MAX_EXPONENT = 690.0  # exp of more is not a float, and of less than minus that is 0


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class ReportError(ValueError):
    """Raised for a report that cannot be made; the message is one line for the user."""


@dataclass(frozen=True)
class _Rows:
    """Where the heads of a heat map lie. A row is a whole number of pixels, or seams would show between cells."""

    layers: int
    heads: int

    @property
    def pixels(self) -> int:
        return max(3, min(16, 440 // (self.layers * self.heads)))

    @property
    def gap(self) -> float:
        """The empty space between two layers, in rows."""
        return max(3, round(0.6 * self.pixels)) / self.pixels

    @property
    def pitch(self) -> float:
        return self.heads + self.gap

    @property
    def end(self) -> float:
        return self.layers * self.pitch - self.gap


def log_ticks(low: float, high: float, digits: Sequence[float]) -> list[float]:
    """`digits` times the powers of ten; the powers alone where that would be many, more digits where it would be few.

    >>> log_ticks(3, 200, (1, 2, 5)), log_ticks(45, 170, (1, 2, 5)), log_ticks(2, 2.1, (1, 2, 5))
    ([5.0, 10.0, 20.0, 50.0, 100.0, 200.0], [50.0, 70.0, 100.0, 150.0], [2.0, 2.02, 2.05, 2.07, 2.1])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for wanted in (digits if len(decades) <= 5 else (1,), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, *range(2, 10))):
        ticks = [tick for decade in decades for digit in wanted if low <= (tick := digit * 10.0**decade) <= high]
        if len(ticks) >= 3:
            return ticks
    return [float(f"{low * (high / low) ** (i / 4):.3g}") for i in range(5)]


def log_axis(low: float, high: float, digits: Sequence[float]) -> dict[str, Any]:
    """Ticks of a log axis and their labels, for `altair.Axis`."""
    return labelled(log_ticks(low, high, digits))


def labelled(ticks: Sequence[float]) -> dict[str, Any]:
    """These ticks and their labels, for `altair.Axis`."""
    labels = json.dumps(tick_labels(ticks), ensure_ascii=False)
    return {"values": list(ticks), "labelExpr": f"{labels}[indexof({json.dumps(list(ticks))}, datum.value)]"}


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Numbers as an axis shows them: powers of ten where zeros would have to be counted.

    >>> tick_labels([0.5, 70, 10_000, 20_000]), tick_labels([1000, 1e4, 2e6, 1e-5]), tick_labels([8192, 131_072])
    (['0.5', '70', '10,000', '20,000'], ['1,000', '10⁴', '2·10⁶', '10⁻⁵'], ['8,192', '131,072'])
    """
    long = 1e4 if max(ticks, default=0) >= 1e5 else 1e5
    return [_power(tick) if tick >= long or tick < 1e-3 else f"{tick:,.12g}" for tick in ticks]


def _power(value: float) -> str:
    digits, _, exponent = f"{value:e}".partition("e")
    if len(f"{float(digits):g}") > 3:
        return f"{value:,.12g}"
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if float(digits) == 1 else f"{float(digits):g}·{power}"


def drawing() -> Any:
    """Altair, or an error of one line that says how to install it and the packages that it needs."""
    try:
        import altair
        import jinja2  # noqa: F401
        import PIL  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ReportError(f"a report needs the package {error.name}: pip install 'longshort[report]'") from None
    return altair


class Charts:
    """The charts of one report, with the scales that they share."""

    def __init__(self, runs: Sequence[Run], datasets: Datasets, *, legend: bool) -> None:
        self.alt = drawing()
        self.runs, self.datasets, self.legend = runs, datasets, legend
        self.variants = list(dict.fromkeys(run.variant for run in runs))

    def loss(self, quantity: str, x: str) -> dict[str, Any]:
        """Loss or perplexity: every step faint, the smoothed line strong with a band over seeds, validation as points,
        spikes as triangles, and a dashed line where a run diverged.
        """
        alt = self.alt
        y = self._loss_axis(quantity)
        tips = [self._tip("run"), *self._places(), self._tip("loss", ".4f"), self._tip("perplexity", ",.2f")]
        spot = {"x": self._x(x), "y": y, "color": self._color(), "tooltip": tips}
        spike_tips = [*tips, self._tip("action"), self._tip("reason")]
        spike: dict[str, Any] = {"shape": "triangle-down", "filled": True, "size": 110, "opacity": 1, "style": "ring"}
        spike["yOffset"] = -8
        layers = [
            self._chart("diverged")
            .mark_rule(strokeDash=[4, 3], strokeWidth=1.5)
            .encode(x=self._x(x), color=self._color(), tooltip=[self._tip("run"), *self._places()]),
            *self._lines("curve", "trend", quantity, x, y, tips),
            self._chart("validation")
            .mark_rule(strokeWidth=1.5)
            .encode(x=self._x(x), y=self._end(y, f"{quantity}_low"), y2=f"{quantity}_high:Q", color=self._color()),
            self._points("validation").encode(**spot),
            self._lost("curve", f"!isValid(datum.{quantity})", spot),
            self._chart("spikes")
            .transform_filter(f"isValid(datum.{quantity})")
            .mark_point(**spike)
            .encode(**{**spot, "tooltip": spike_tips}),
            self._chart("spikes")
            .transform_filter(f"!isValid(datum.{quantity})")
            .mark_point(**spike)
            .encode(**{**spot, "y": alt.value(EDGE + 16), "tooltip": spike_tips}),
        ]
        return self._finish(layers, "Loss" if quantity == "loss" else "Perplexity")

    def logits(self, x: str) -> dict[str, Any]:
        """The largest |logit| of all heads: every measured step faint, the smoothed line strong with a band over seeds,
        a triangle at the largest of each run, and a cross at the top where some head was not finite.
        """
        alt = self.alt
        tips = [self._tip("run"), *self._places(), self._tip("logit", ",.2f", "max |logit|")]
        ends = self.datasets.peak_range or (1.0, 10.0)
        scale = alt.Scale(type="log", domain=ends, nice=False)
        y = alt.Y("logit:Q", title="max |logit|", scale=scale, axis=alt.Axis(**log_axis(*ends, (1, 2, 5))))
        spot = {"x": self._x(x), "y": y, "color": self._color(), "tooltip": tips}
        where = [self._tip("layer"), self._tip("head"), self._tip("lost", None, "heads not finite")]
        layers = [
            *self._lines("logits", "logit_trend", "logit", x, y, tips),
            self._chart("peak")
            .mark_point(shape="triangle-down", filled=True, size=90, opacity=1, yOffset=-7, style="ring")
            .encode(**spot),
            self._lost("logits", "datum.lost > 0", {**spot, "tooltip": [*tips, *where]}),
        ]
        return self._finish(layers, "Largest attention logit")

    def learning(self, measure: str, x: str) -> dict[str, Any]:
        """A measure of reinforcement learning: every step faint, the smoothed line strong, and rewards on validation
        problems as points.
        """
        alt, (name, title) = self.alt, MEASURES[measure]
        tips = [self._tip("run"), *self._places(), self._tip(measure, ".4f", name)]
        y = alt.Y(f"{measure}:Q", title=title, scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(tickCount=6))
        layers = self._lines("learning", "learning_trend", measure, x, y, tips)
        if measure == "reward":
            spot = {"x": self._x(x), "y": y, "color": self._color(), "tooltip": tips}
            layers.append(self._points("rewards").encode(**spot))
        return self._finish(layers, f"{title[0].upper()}{title[1:]}")

    def _lines(self, raw: str, trend: str, field: str, x: str, y: altair.Y, tips: list[Any]) -> list[Any]:
        """Faint lines of every run, the band between the seeds, the smoothed line, and its points under the pointer."""
        alt = self.alt
        raw_lines = {"x": self._x(x), "y": y, "detail": "run:N", "color": self._color()}
        lines = raw_lines | self._series()
        hover = alt.selection_point(name="hover", nearest=True, on="pointerover", clear="pointerout", empty=False)
        spot = {"x": self._x(x), "y": y, "color": self._color(), "tooltip": tips}
        band = {"x": self._x(x), "y": self._end(y, f"{field}_low"), "y2": f"{field}_high:Q", "color": self._color()}
        bands = [self._chart(trend).mark_area(opacity=0.2).encode(**band)] if self.datasets.seeds > 1 else []
        return [
            self._chart(raw).mark_line(opacity=0.25, strokeWidth=1).encode(**raw_lines),
            *bands,
            self._chart(trend).mark_line(strokeWidth=2.2).encode(**lines).add_params(self._zoom()),
            self._chart(trend)
            .transform_filter(f"isValid(datum.{field})")
            .mark_point(filled=True, size=70)
            .encode(**spot, opacity=alt.condition(hover, alt.value(1), alt.value(0)))
            .add_params(hover),
        ]

    def _lost(self, data: str, test: str, spot: dict[str, Any]) -> altair.Chart:
        """Crosses at the upper edge where something was not finite."""
        edge = {**spot, "y": self.alt.value(EDGE), "color": self.alt.value(NOT_FINITE)}
        mark = self._chart(data).transform_filter(test)
        return mark.mark_point(shape="cross", filled=True, size=60, angle=45, opacity=1).encode(**edge)

    def _end(self, y: altair.Y, field: str) -> altair.Y:
        """The same axis for another field."""
        same = y.copy()
        same.shorthand = f"{field}:Q"
        return same

    def heat(self, index: int) -> dict[str, Any]:
        """Max |logit| of every head of one run: heads grouped by layer downwards, steps to the right."""
        alt, run = self.alt, self.runs[index]
        rows = _Rows(*run.logits_NLH.shape[1:])
        base = self._heat_cells(index, run, rows)
        y = self._heat_axis(rows, run if rows.pixels >= READABLE_ROW else None)
        cells = self.datasets.heat[index]
        across = alt.Scale(domain=[cells[0]["step"], cells[-1]["until"]], nice=False, zero=False)
        x = alt.X("step:Q", title="step", scale=across, axis=alt.Axis(format=",~r"))
        places = {"x": x, "x2": "overlap:Q", "y": y[0], "y2": "bottom:Q"}
        tips = [self._tip("step", ","), self._tip("layer"), self._tip("head"), self._tip("reach")]
        tips.append(self._tip("logit", ",.2f", "max |logit|"))
        grid = base.mark_rect(clip=True).encode(**places, color=self._ramp(), tooltip=tips)
        lost = (
            base.transform_filter("!isValid(datum.logit)")
            .mark_rect(clip=True, color=NOT_FINITE)
            .encode(**{**places, "y": y[1]}, tooltip=tips)
        )
        chart = alt.layer(grid, lost).resolve_axis(y="independent")
        chart = chart.properties(width=WIDTH, height=round(rows.pixels * rows.end))
        return without_theme(chart)

    def heat_maps(self) -> dict[str, Any]:
        """The heat maps of the first run of each variant, for a picture."""
        first = [next(i for i, run in enumerate(self.runs) if run.variant == name) for name in self.variants]
        drawn = [index for index in first if self.datasets.heat[index]][:MAX_PICTURED_HEAT_MAPS]
        charts = []
        for index in drawn:
            chart = self.heat(index)
            schema = chart.pop("$schema")
            charts.append({**chart, "width": WIDTH // 2, "title": self.runs[index].label})
        if not charts:
            return {}
        title = {"text": "Largest attention logit of each head", "anchor": "start", "offset": 12}
        return {"$schema": schema, "title": title, "concat": charts, "columns": 2, "spacing": 40}

    def _chart(self, data: str) -> altair.Chart:
        return self.alt.Chart(self.alt.NamedData(name=data))

    def _points(self, data: str) -> Any:
        return self._chart(data).mark_point(filled=True, size=62, opacity=1, style="ring")

    def _zoom(self) -> altair.Parameter:
        # Without shift, wheel and drag scroll the page; on a phone nothing else could.
        return self.alt.selection_interval(
            name="zoom",
            bind="scales",
            encodings=["x"],
            zoom="wheel![event.shiftKey]",
            translate="[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!",
        )

    def _x(self, field: str) -> altair.X:
        titles = {"step": "step", "tokens": "tokens", "time": f"training time ({self.datasets.time_unit})"}
        formats = {"step": ",~r", "tokens": "~s", "time": "~g"}
        scale = self.alt.Scale(domain=[0, self.datasets.x_ends[field]], nice=False)
        return self.alt.X(f"{field}:Q", title=titles[field], scale=scale, axis=self.alt.Axis(format=formats[field]))

    def _loss_axis(self, quantity: str) -> altair.Y:
        alt, ends = self.alt, self.datasets.loss_range
        if quantity == "loss":
            scale = alt.Scale(domain=ends, clamp=self.datasets.clipped, nice=False, zero=False)
            return alt.Y("loss:Q", title="loss (nats per token)", scale=scale, axis=alt.Axis(tickCount=6))
        domain = [math.exp(min(max(end, -MAX_EXPONENT), MAX_EXPONENT)) for end in ends]
        scale = alt.Scale(type="log", domain=domain, clamp=self.datasets.clipped, nice=False)
        axis = alt.Axis(**log_axis(domain[0], domain[1], (1, 2, 5)))
        return alt.Y("perplexity:Q", title="perplexity", scale=scale, axis=axis)

    def _color(self) -> altair.Color:
        return self.alt.Color("variant:N", scale=self.alt.Scale(domain=self.variants), legend=self._legend())

    def _series(self) -> dict[str, Any]:
        """Colour, and dashes where a variant has one."""
        dashes = [style.dash for style in method_styles(self.variants, LIGHT)]
        if all(dash == DASHES[0] for dash in dashes):
            return {"color": self._color()}
        scale = self.alt.Scale(domain=self.variants, range=dashes)
        dash = self.alt.StrokeDash("variant:N", scale=scale, legend=self._legend())
        return {"color": self._color(), "strokeDash": dash}

    def _legend(self) -> altair.Legend | None:
        # The page has its own, made of buttons.
        if not self.legend:
            return None
        stroke = {"symbolType": "stroke", "symbolSize": 450, "symbolOpacity": 1}  # long enough to tell dashes apart
        return self.alt.Legend(title=None, orient="top", columns=4, **stroke)

    def _tip(self, field: str, form: str | None = None, title: str | None = None) -> altair.Tooltip:
        kind = "Q" if form else "N"
        return self.alt.Tooltip(f"{field}:{kind}", title=title or field, **({"format": form} if form else {}))

    def _places(self) -> list[altair.Tooltip]:
        time = self._tip("time", ",.3~r", self.datasets.time_unit)
        return [self._tip("step", ","), self._tip("tokens", ".3~s"), time]

    def _finish(self, layers: list[Any], title: str) -> dict[str, Any]:
        chart = self.alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
        if self.legend:
            chart = chart.properties(title=self.alt.TitleParams(title, anchor="start", offset=10))
        return without_theme(chart)

    def _heat_cells(self, index: int, run: Run, rows: _Rows) -> altair.Chart:
        """One row per cell, unpacked from one row per stretch of steps, so that the page holds few bytes per cell."""
        reaches = json.dumps([label(sees) for layer in run.header.sees for sees in layer])
        return (
            self._chart(f"heat-{index}")
            .transform_flatten(["logit"])
            .transform_window(cell="row_number()", groupby=["step"])
            .transform_calculate(
                layer=f"floor((datum.cell - 1) / {rows.heads})",
                head=f"(datum.cell - 1) % {rows.heads}",
                reach=f"{reaches}[datum.cell - 1]",
            )
            .transform_calculate(top=f"datum.layer * {rows.pitch} + datum.head")
            # Cells reach under their right neighbour: edges that only touch leave a hairline between them.
            .transform_calculate(bottom="datum.top + 1", overlap="datum.until + 0.5 * (datum.until - datum.step)")
        )

    def _ramp(self) -> altair.Color:
        low, high = self.datasets.logit_range or (1.0, 10.0)
        scale = self.alt.Scale(type="log", domain=[low, max(high, low * 1.01)], nice=False)
        legend = self.alt.Legend(
            orient="bottom",
            direction="horizontal",
            title="max |logit|",
            gradientLength=220,
            **log_axis(low, high, (1, 3)),
        )
        return self.alt.Color("logit:Q", scale=scale, legend=legend)

    def _heat_axis(self, rows: _Rows, run: Run | None) -> tuple[altair.Y, altair.Y]:
        """Layers on the left and, where a row is tall enough to read, each head's reach on the right."""
        alt, pitch, heads = self.alt, rows.pitch, rows.heads
        scale = alt.Scale(domain=[0, rows.end], reverse=True, nice=False)
        named = alt.Axis(
            values=[layer * pitch + heads / 2 for layer in range(rows.layers)],
            labelExpr=f"'layer ' + round((datum.value - {heads / 2}) / {pitch})",
            grid=False,
            title=None,
        )
        if run is None:
            return alt.Y("top:Q", scale=scale, axis=named), alt.Y("top:Q", scale=scale, axis=None)
        seen = [label(sees) for layer in run.header.sees for sees in layer]
        reached = alt.Axis(
            orient="right",
            values=[layer * pitch + head + 0.5 for layer in range(rows.layers) for head in range(heads)],
            labelExpr=f"{json.dumps(seen)}[round(datum.index * {len(seen) - 1})]",
            labelFontSize=9,
            labelOverlap=False,
            labelPadding=3,
            grid=False,
            title="sees",
            titleAngle=0,
            titleAlign="left",
            titleAnchor="start",
            titleFontSize=10,
            titlePadding=2,
        )
        return alt.Y("top:Q", scale=scale, axis=named), alt.Y("top:Q", scale=scale, axis=reached)


def without_theme(chart: Any) -> dict[str, Any]:
    """The specification of a chart."""
    spec: dict[str, Any] = chart.to_dict()
    spec.pop("config", None)
    return spec


def with_data(spec: dict[str, Any], datasets: Datasets) -> dict[str, Any]:
    """A specification that stands alone: data and light theme included."""
    names = list(dict.fromkeys(table["constants"]["variant"] for table in datasets.tables["curve"]))
    category = [style.color for style in method_styles(names, LIGHT, strong=MOST_STRONG)]
    behind = {name for name, color in zip(names, category, strict=True) if color == LIGHT["aside"]}
    named: dict[str, Any] = {
        name: rows(sorted(tables, key=lambda table: table["constants"]["variant"] not in behind))
        for name, tables in datasets.tables.items()
    }
    named |= {f"heat-{index}": heat for index, heat in enumerate(datasets.heat)}
    return {**spec, "datasets": named, "config": picture_config(category)}
