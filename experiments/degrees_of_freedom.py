"""The mechanism, on a CPU: error and logits of free Q and K that must express a banded pattern, as n / d grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.banded_fit import BAND, CLOSE, RATE, RESULTS, STEPS, measure, rank_needed
from experiments.engine import figures, measures
from experiments.engine.recipe import FAILS, HOLDS, PARTLY, Claim, Finding, Recipe, Summary

_MEASURED = ("error", "max_logit", "rank")
DRAWN, LEAST = (4, 8, 16, 32), 1e-6
"""Widths in the figure, which more would crowd, and the smallest error that it shows."""


def summarise(folder: Path) -> Summary:
    """Means over seeds, the rank needed at each length, and how logits grow."""
    path = folder / RESULTS
    if not path.is_file():
        raise ValueError(f"{folder} holds no {RESULTS}; run `python -m experiments degrees-of-freedom` first")
    results = measures.read_json(path)
    groups: dict[tuple[int, int, bool], list[dict[str, Any]]] = {}
    for fit in results["fits"]:
        groups.setdefault((fit["n"], fit["d"], fit["windowed"]), []).append(fit)
    rows = [
        {
            "n": n,
            "d": d,
            "windowed": windowed,
            **{key: statistics.fmean(fit[key] for fit in fits) for key in _MEASURED},
        }
        for (n, d, windowed), fits in groups.items()
    ]
    ranks = [
        {
            "n": n,
            **{
                name: rank_needed([(r["d"], r["error"]) for r in rows if r["n"] == n and r["windowed"] == windowed])
                for name, windowed in (("full", False), ("window", True))
            },
        }
        for n in sorted({row["n"] for row in rows})
    ]
    made = {key: results[key] for key in ("seconds", "machine", "settings")}
    made["commands"] = measures.read_json(folder / "commands.json")
    data = {"provenance": made, "rows": rows, "rank_needed": ranks, "fits": results["fits"]}
    return Summary(data=data, table=_table(rows, ranks), sentences=_sentences(rows, ranks), findings=_findings(rows))


def _table(rows: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> str:
    shown = measures.shown
    cells = {(row["n"], row["d"], row["windowed"]): row for row in rows}
    pairs = [(full, cells[n, d, True]) for (n, d, windowed), full in cells.items() if not windowed]
    header = (
        "n",
        "d",
        "n / d",
        "error, full",
        "error, window",
        "max abs logit, full",
        "window",
        "rank, full",
        "window",
    )
    body = [
        (f["n"], f["d"], shown(f["n"] / f["d"]), *(shown(side[key], 3) for key in _MEASURED for side in (f, w)))
        for f, w in pairs
    ]
    widest = max(row["d"] for row in rows)
    needed = [
        (r["n"], *(f"> {widest}" if r[side] is None else f"{r[side]:.1f}" for side in ("full", "window")))
        for r in ranks
    ]
    title = f"Width d, the rank that QK^T may have, at which the error falls to {CLOSE} nats:"
    return (
        "Means over seeds. Error: KL divergence of a row, in nats. Rank: the effective rank of the learned QK^T.\n\n"
        + measures.markdown(header, body)
        + f"\n{title}\n\n"
        + measures.markdown(("n", "full", "window"), needed)
    )


def _ends(rows: Sequence[dict[str, Any]], key: str, *, windowed: bool) -> list[tuple[float, float]]:
    """For each width, the value at the shortest and at the longest n."""
    chosen = [row for row in rows if row["windowed"] == windowed]
    ends = []
    for d in sorted({row["d"] for row in chosen}):
        of_width = sorted((row for row in chosen if row["d"] == d), key=lambda row: int(row["n"]))
        ends.append((of_width[0][key], of_width[-1][key]))
    return ends


def _growth(rows: Sequence[dict[str, Any]], *, windowed: bool) -> float:
    """By what factor the largest |logit| grows from the shortest n to the longest: geometric mean over widths."""
    return statistics.geometric_mean(last / first for first, last in _ends(rows, "max_logit", windowed=windowed))


def _sentences(rows: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    lengths = sorted({row["n"] for row in rows})
    full, window = (_growth(rows, windowed=w) for w in (False, True))
    free, masked = (max(row["max_logit"] for row in rows if row["windowed"] == w) for w in (False, True))
    worse = sum(last > first for first, last in _ends(rows, "error", windowed=False))
    needed = {side: [r[side] for r in ranks] for side in ("full", "window")}
    said = {side: " to ".join("more" if r is None else f"{r:.0f}" for r in (v[0], v[-1])) for side, v in needed.items()}
    widths = len({row["d"] for row in rows})
    return (
        f"From n {lengths[0]} to {lengths[-1]} the error without a window grows at {worse} of {widths} widths, and the "
        f"largest |logit| by a factor of {full:.2f}; with the window by {window:.2f} (geometric means over widths).",
        f"The largest |logit| of all fits is {free:.0f} without and {masked:.0f} with the window.",
        f"The width that the pattern needs goes from {said['full']} without and from {said['window']} with the window.",
    )


def _findings(rows: Sequence[dict[str, Any]]) -> dict[str, Finding]:
    errors = _ends(rows, "error", windowed=False)
    full, window = _growth(rows, windowed=False), _growth(rows, windowed=True)
    grows = sum(last > first for first, last in errors)
    inflates = Finding(
        ours=f"error grows at {grows} of {len(errors)} widths, logits by {full:.2f}x",
        verdict=HOLDS if grows == len(errors) and full >= 2 else PARTLY if grows or full > 1.1 else FAILS,
    )
    cells = {(row["n"], row["d"], row["windowed"]): row for row in rows}
    pairs = [(row, cells[n, d, True]) for (n, d, windowed), row in cells.items() if not windowed]
    lower = [all(w[key] < f[key] for key in ("error", "max_logit")) for f, w in pairs]
    mended = Finding(
        ours=f"error and logits lower in {sum(lower)} of {len(lower)} fits; logits grow by {window:.2f}x",
        verdict=HOLDS if all(lower) and window <= 1.5 else PARTLY if any(lower) else FAILS,
    )
    return {"inflates": inflates, "window": mended}


def figure(data: dict[str, Any]) -> Any:
    """Error and largest |logit| against n / d, solid without and pale with the window; the width needed against n."""
    from longshort.report.charts import drawing

    alt = drawing()
    names = ("full", "window")
    panels = []
    for key, title in (("error", f"error (KL, nats), or less than {LEAST:g}"), ("max_logit", "max |logit|")):
        points = [
            {
                "series": names[row["windowed"]],
                "detail": str(row["d"]),
                "ratio": row["n"] / row["d"],
                "value": max(row[key], LEAST),
                "d": row["d"],
            }
            for row in data["rows"]
            if row["d"] in DRAWN
        ]
        axes: dict[str, Any] = {"x": "ratio", "y": "value", "x_title": "n / d", "y_title": title, "names": names}
        chart = figures.lines(points, log=True, log_x=True, points=True, width=300, height=260, **axes)
        last = [p for p in points if p["ratio"] * p["d"] == max(q["ratio"] * q["d"] for q in points)]
        labels = figures.frame(last).mark_text(align="left", dx=6, fontSize=10, color="#5c6066")
        labels = labels.encode(x="ratio:Q", y="value:Q", text="label:N")
        labels = labels.transform_calculate(label="'d ' + datum.d")
        panels.append(chart + labels)
    needed = [
        {"series": side, "detail": "", "n": r["n"], "width": r[side]}
        for r in data["rank_needed"]
        for side in names
        if r[side] is not None
    ]
    axes = {"x": "n", "y": "width", "x_title": "n", "y_title": f"width d for an error of {CLOSE} nats", "names": names}
    panels.append(figures.lines(needed, log_x=True, points=True, width=260, height=260, **axes))
    return alt.hconcat(*panels)


RECIPE = Recipe(
    name="degrees-of-freedom",
    question="Can softmax(QK^T) of width d express a dense banded pattern, as n / d grows?",
    method=(
        f"Free Q and K of width d learn a causal pattern with random weights (softmax of N(0, 1)) on the last {BAND} "
        f"keys, by {STEPS} steps of Adam at {RATE} with a cosine, fp32; full causal attention against a mask of the "
        "same window. A failure to fit may be one of the optimizer; no claim is made that the optimum was found. The "
        "rules were written after a look at one seed of some sizes. What "
        "trained models do is in `explosion`, which looks into its models."
    ),
    cost="CPU: about 10 minutes on one core, three seeds; --quick: seconds",
    claims={
        "inflates": Claim(
            text="with n much larger than d, QK^T cannot express dense short-range attention and inflates its logits",
            paper="argued by counting degrees of freedom",
            rule="from the shortest to the longest n: holds if the error grows at every width and logits at least "
            "double (geometric mean over widths); partly if some grow",
        ),
        "window": Claim(
            text="a window removes the need",
            paper="O(n w) scores, which O(n d) parameters can express",
            rule="holds if error and logits are lower in every fit and logits grow by at most half; partly if in some",
        ),
    },
    summarise=summarise,
    figure=figure,
    measure=measure,
)
