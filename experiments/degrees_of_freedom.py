"""Can softmax(QK^T) of width d express a dense banded pattern, as n / d grows? The mechanism, on a CPU.

The paper argues by counting: O(n d) numbers cannot express n^2 scores when n is much larger than d, and the logits
inflate in the attempt; a window leaves O(n w) scores, which can be expressed. Here Q and K are free (no data, no model,
see `banded_fit`) and learn a random pattern on the last keys, with and without the mask of that window.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from experiments.banded_fit import BAND, CLOSE, RATE, RESULTS, STEPS, measure, rank_needed
from experiments.engine import figures, measures, tables
from experiments.engine.evidence import HOLDS, PARTLY, Interval, every, interval, paired, verdict_of
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Experiment, Finding
from experiments.engine.tables import shown
from longshort.report.figures import frame

NAME = "degrees-of-freedom"
MEASURED = ("error", "max_logit", "rank")
DRAWN, LEAST = (4, 16, 32), 1e-6
"""The widths in the figure (more would crowd it), and the smallest error it shows."""


def collect(folder: Path) -> Data:
    """Means over seeds, and the rank needed at each length."""
    results = measures.results_in(folder, RESULTS, NAME)
    groups: dict[tuple[int, int, bool], list[Row]] = {}
    for fit in results["fits"]:
        groups.setdefault((fit["n"], fit["d"], fit["windowed"]), []).append(fit)
    rows = [
        {"n": n, "d": d, "windowed": windowed} | {key: statistics.fmean(fit[key] for fit in fits) for key in MEASURED}
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
    made = {key: results[key] for key in ("seconds", "machine", "settings")} | {"commands": measures.commands(folder)}
    return {"provenance": made, "rows": rows, "rank_needed": ranks, "fits": results["fits"]}


def _seeds(data: Data) -> int:
    return len({fit["seed"] for fit in data["fits"]})


def pairs(data: Data) -> list[tuple[Row, Row]]:
    """Each fit without the window, and the same fit with it."""
    cells = {(row["n"], row["d"], row["windowed"]): row for row in data["rows"]}
    return [(full, cells[n, d, True]) for (n, d, windowed), full in cells.items() if not windowed]


def table(data: Data) -> str:
    header = (
        *("n", "d", "n / d", "seeds", "error, full", "error, window"),
        *("max abs logit, full", "window", "rank, full", "window"),
    )
    seeds = _seeds(data)
    lines = [
        (f["n"], f["d"], shown(f["n"] / f["d"]), seeds, *(shown(side[key], 3) for key in MEASURED for side in (f, w)))
        for f, w in pairs(data)
    ]
    about = "Means over seeds. Error: KL divergence per query, in nats. Rank: the effective rank of the learned QK^T."
    return f"{about}\n\n{tables.markdown(header, lines)}"


def rank_table(data: Data) -> str:
    widest = max(row["d"] for row in data["rows"])
    lines = [
        (r["n"], _seeds(data), *(f"> {widest}" if r[side] is None else f"{r[side]:.1f}" for side in ("full", "window")))
        for r in data["rank_needed"]
    ]
    about = f"Width d, the rank that QK^T may have, at which the error falls to {CLOSE} nats:"
    return f"{about}\n\n{tables.markdown(('n', 'seeds', 'full', 'window'), lines)}"


def by_fit(data: Data) -> dict[tuple[int, int, bool, str], dict[int, float]]:
    """Errors and largest |logit|s of each n, d and mask, by seed."""
    found: dict[tuple[int, int, bool, str], dict[int, float]] = {}
    for fit in data["fits"]:
        for key in MEASURED[:2]:
            found.setdefault((fit["n"], fit["d"], fit["windowed"], key), {})[fit["seed"]] = fit[key]
    return found


def ratios(data: Data, key: str, *, windowed: bool) -> list[dict[int, float]]:
    """For each width, the logarithm of how many times larger the value is at the longest n than at the shortest."""
    fits, found = by_fit(data), []
    for d in sorted({fit["d"] for fit in data["fits"]}):
        lengths = [fit["n"] for fit in data["fits"] if fit["d"] == d]
        first, last = (fits[n, d, windowed, key] for n in (min(lengths), max(lengths)))
        found.append({seed: math.log(last[seed] / first[seed]) for seed in first if seed in last})
    return found


def growth(data: Data, *, windowed: bool) -> Interval:
    """The logarithm of the factor by which the largest |logit| grows: the geometric mean over widths, seed by seed."""
    by_width = ratios(data, "max_logit", windowed=windowed)
    seeds = set.intersection(*(set(of) for of in by_width))
    return interval([statistics.fmean(of[seed] for of in by_width) for seed in sorted(seeds)])


def _times(factor: Interval) -> str:
    low, mean, high = (math.exp(value) for value in (factor.low, factor.mean, factor.high))
    return f"{mean:.3f}x ({low:.3f} to {high:.3f})"


def inflates(data: Data) -> Finding:
    factor = growth(data, windowed=False)
    grows = [interval([*of.values()]).is_above() for of in ratios(data, "error", windowed=False)]
    cases = [*grows, factor.is_above(math.log(1.1))]
    doubles = all(grows) and factor.is_at_least(math.log(2))
    return Finding(
        seeds=(_seeds(data),),
        ours=f"error grows at {grows.count(True)} of {len(grows)} widths, logits by {_times(factor)}",
        verdict=HOLDS if doubles else PARTLY if any(cases) else verdict_of(cases),
    )


def mended(data: Data) -> Finding:
    factor, fits = growth(data, windowed=True), by_fit(data)
    lower = []
    for full, _ in pairs(data):
        sides = [[fits[full["n"], full["d"], masked, key] for masked in (True, False)] for key in MEASURED[:2]]
        found = [paired(*of) for of in sides]
        lower.append(every([None if one is None else one.is_below() for one in found]))
    verdict = verdict_of(lower)
    return Finding(
        seeds=(_seeds(data),),
        ours=f"error and logits lower in {lower.count(True)} of {len(lower)} fits; logits grow by {_times(factor)}",
        verdict=PARTLY if verdict == HOLDS and not factor.is_at_most(math.log(1.5)) else verdict,
    )


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

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
        chart = figures.lines(points, log=True, log_x=True, points=True, width=225, height=220, **axes)
        last = [p for p in points if p["ratio"] * p["d"] == max(q["ratio"] * q["d"] for q in points)]
        labels = frame(last).mark_text(align="left", dx=6, fontSize=10, color="#5c6066")
        labels = labels.encode(x="ratio:Q", y="value:Q", text="label:N")
        panels.append(chart + labels.transform_calculate(label="'d ' + datum.d"))
    needed = [
        {"series": side, "detail": "", "n": r["n"], "width": r[side]}
        for r in data["rank_needed"]
        for side in names
        if r[side] is not None
    ]
    axes = {"x": "n", "y": "width", "x_title": "n", "y_title": f"width d for an error of {CLOSE} nats", "names": names}
    panels.append(figures.lines(needed, log_x=True, points=True, width=170, height=220, **axes))
    return drawing().hconcat(*panels)


EXPERIMENT = Experiment(
    name=NAME,
    question="Can softmax(QK^T) of width d express a dense banded pattern, as n / d grows?",
    method=(
        f"Free Q and K of width d learn a causal pattern with random weights (softmax of N(0, 1)) on the last {BAND} "
        f"keys, by {STEPS} steps of Adam at {RATE} with a cosine schedule, in fp32; full causal attention is compared "
        "with a mask of the same window. A failure to fit may be the optimizer's: nothing shows that the optimum was "
        "found. The rules were written after a look at one seed of some sizes. What trained models do is measured in "
        "`explosion`."
    ),
    cost="CPU: about 10 minutes on one core for three seeds; --quick: seconds",
    caption=(
        "Error (left) and largest |logit| (middle) against n / d, with one line per width, without and with the mask "
        "of the window; the width that the pattern needs against n (right). Means over three seeds."
    ),
    claims={
        "inflates": Claim(
            text="with n much larger than d, QK^T cannot express dense short-range attention and inflates its logits",
            paper="argued by counting degrees of freedom",
            rule="from the shortest to the longest n, by the whole interval over seeds: holds if the error grows at "
            "every width and the logits at least double (geometric mean over widths); partly if some of them grow",
            judge=inflates,
        ),
        "window": Claim(
            text="a window removes the need to inflate the logits",
            paper="O(n w) scores, which O(n d) parameters can express",
            rule="by the whole paired interval: holds if error and logits are lower in every fit and the logits grow "
            "by at most half; partly if they are lower in some fits",
            judge=mended,
        ),
    },
    collect=collect,
    table=table,
    more=rank_table,
    figure=figure,
    measure=measure,
)
