"""The page about the heads of one model, from the record that `longshort inspect` leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longshort.files import check_replaceable, write_atomically
from longshort.heads import HeadPlan
from longshort.report import theme
from longshort.report.charts import HEIGHT, WIDTH, drawing, log_axis, without_theme
from longshort.report.page import page_environment, script_json, vega_script
from longshort.report.plan import plan_chart
from longshort.report.seen import seen_by

Record = dict[str, Any]
MEASURES = {
    "window_99": ("99 %", "The smallest window, in keys, that keeps 99 % of the head's attention."),
    "window_999": ("99.9 %", "The smallest window, in keys, that keeps 99.9 % of the head's attention."),
    "window_99_first": (
        "99 % and first keys",
        "The smallest window, in keys, that together with the first four keys of the sequence keeps 99 % of the "
        "head's attention.",
    ),
    "sink": ("first keys", "Attention on the first four keys of the sequence."),
    "learned_sink": ("learned sink", "Attention on the learned sink, which has no key."),
    "entropy": ("entropy", "Entropy of the attention, in nats: 0 looks at one key."),
    "largest_logit": ("largest |logit|", "The largest |logit| of any query and key, before softcap and biases."),
    "induction": (
        "induction",
        "In random tokens that repeat: attention on the token that followed the same one in the first half.",
    ),
    "retrieval": (
        "retrieval",
        "In filler sentences that hide a number: attention on that number's tokens where they are written again.",
    ),
}
"""The measures of a head in the order of the page: a name, and a sentence."""
_SHARES = ("sink", "learned_sink", "induction", "retrieval")
_MARK = "data-inspection="


def check_heads_page(out: Path) -> None:
    """Raise if a file that is not such a page would be overwritten, or nothing can be drawn."""
    check_replaceable(out, _MARK)
    drawing()


def write_heads_page(record: Record, out: Path, *, command: str) -> Path:
    """Write the page to `out`; it needs nothing but itself. `command` is shown as the one that made it."""
    check_heads_page(out)
    shown = [name for name in MEASURES if _is_shown(record, name)]
    specs = {f"heat-{name}": heat_map(record, name) for name in shown}
    specs |= {f"beyond-{kind}": beyond_chart(record, kind) for kind in ("attention", "attention_first")}
    specs["sees"] = _plan_picture(record["sees"])
    proposal = record.get("proposal")
    if proposal is not None:
        specs["plan"] = _plan_picture(proposal["plans"])
    data = {"heads": _head_rows(record, shown), **{f"beyond-{k}": _beyond_rows(record, k) for k in _BEYOND}}
    themes = {name: theme.vega_config(colors) for name, colors in (("light", theme.LIGHT), ("dark", theme.DARK))}
    html = (
        page_environment()
        .get_template("heads.html.j2")
        .render(
            title=f"What each head does: {record['model']['folder']}",
            summary=summary(record),
            record=record,
            planned=any(window is not None for plan in record["sees"] for window in plan["windows"]),
            measures=[(name, *MEASURES[name]) for name in shown],
            proposal=proposal,
            command=command,
            themes=[(theme.LIGHT, []), (theme.DARK, [])],
            not_finite=theme.NOT_FINITE,
            font=theme.FONT,
            payload=script_json({"specs": specs, "data": data, "themes": themes}),
            vega=vega_script(),
        )
    )
    return write_atomically(out, html)


def summary(record: Record) -> str:
    """What was found, in two or three sentences."""
    windows = [window for row in record["heads"]["window_99"] for window in row]
    first = [window for row in record["heads"]["window_99_first"] for window in row]
    length = record["text"]["length"]
    near, streaming = (sum(window <= length // 8 for window in found) for found in (windows, first))
    text = (
        f"Of {len(windows)} heads, {near} keep 99 % of their attention within {length // 8:,} of {length:,} keys"
        + (f", and {streaming} within those and the first four keys" if streaming > near else "")
        + f". Loss on the held-out text: {record['loss']:.4f}."
    )
    if (proposal := record.get("proposal")) is not None:
        found = proposal["costs"]
        text += (
            f" The proposed plan has {found['share']:.1%} of full attention's keys and {found['cache_share']:.1%} of "
            f"its cache; untrained, its loss is {proposal['loss']:.4f} ({proposal['loss'] - record['loss']:+.4f})."
        )
    return text


def heat_map(record: Record, measure: str) -> dict[str, Any]:
    """Layers downwards, heads to the right, one measure as colour; the data is the page's."""
    alt = drawing()
    values = [value for row in record["heads"][measure] for value in row]
    if measure.startswith("window"):
        length = record["text"]["length"]
        scale = alt.Scale(type="log", domain=[1, length])
        legend = alt.Legend(title="keys", orient="bottom", gradientLength=240, **log_axis(1, length, (1,)))
    else:
        scale = alt.Scale(domain=[0, 1 if measure in _SHARES else max(values) or 1])
        legend = alt.Legend(title=MEASURES[measure][0], orient="bottom", gradientLength=240)
    padded = alt.Scale(paddingInner=0.06)
    chart = (
        alt.Chart(alt.NamedData(name="heads"))
        .mark_rect()
        .encode(
            x=alt.X("head:O", title="head", axis=alt.Axis(labelAngle=0, orient="top"), scale=padded),
            y=alt.Y("layer:O", title="layer", scale=padded),
            color=alt.Color(f"{measure}:Q", scale=scale, legend=legend),
            tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("head:O")]
            + [
                alt.Tooltip(f"{name}:Q", title=MEASURES[name][0], format=",d" if name.startswith("window") else ",.3f")
                for name in MEASURES
                if _is_shown(record, name)
            ],
        )
    )
    layers = record["model"]["layers"]
    return without_theme(chart.properties(width=WIDTH, height=max(8, min(28, 640 // layers)) * layers))


_BEYOND = {
    "attention": "attention beyond the window",
    "attention_first": "attention beyond the window and the first four keys",
}


def beyond_chart(record: Record, kind: str) -> dict[str, Any]:
    """The attention beyond a window, a line for the mean of each layer's heads."""
    alt = drawing()
    windows = record["beyond"]["windows"]
    across = alt.Scale(type="log", base=2, domain=[windows[0], windows[-1]], nice=False)
    x = alt.X("window:Q", title="window (keys)", scale=across, axis=alt.Axis(values=windows, format=",d"))
    last = record["model"]["layers"] - 1
    layers = alt.Legend(title="layer", orient="bottom", values=sorted({0, last // 3, 2 * last // 3, last}), format="d")
    chart = (
        alt.Chart(alt.NamedData(name=f"beyond-{kind}"))
        .mark_line(strokeWidth=2, point={"size": 26, "filled": True})
        .encode(
            x=x,
            y=alt.Y("share:Q", title=_BEYOND[kind], scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%")),
            color=alt.Color("layer:Q", legend=layers, scale=alt.Scale(domain=[-1, last])),
            detail="layer:N",
            tooltip=["layer:O", alt.Tooltip("window:Q", format=",d"), alt.Tooltip("share:Q", format=".2%")],
        )
    )
    return without_theme(chart.properties(width=WIDTH, height=HEIGHT))


def _plan_picture(plans: list[dict[str, Any]]) -> dict[str, Any]:
    return plan_chart([seen_by(HeadPlan.from_dict(plan)) for plan in plans])


def _is_shown(record: Record, name: str) -> bool:
    found = record["heads"].get(name)
    return found is not None and (name != "learned_sink" or any(value for row in found for value in row))


def _head_rows(record: Record, shown: list[str]) -> list[dict[str, Any]]:
    return [
        {"layer": layer, "head": head} | {name: record["heads"][name][layer][head] for name in shown}
        for layer in range(record["model"]["layers"])
        for head in range(record["model"]["heads"])
    ]


def _beyond_rows(record: Record, kind: str) -> list[dict[str, Any]]:
    windows = record["beyond"]["windows"]
    return [
        {"layer": layer, "window": window, "share": sum(head[i] for head in heads) / len(heads)}
        for layer, heads in enumerate(record["beyond"][kind])
        for i, window in enumerate(windows)
    ]
