"""Does descent on the e-exponentiated loss reach the same risk from every start?

The abstract of the first version of arXiv 1902.06127 says that for 0.5 < e < 1 all stationary points of the risk of
one layer are global minima; later versions do not say so. Many random starts descend on one fixed risk (see `descent`):
starts that settle above the lowest risk found are stuck.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.descent import EXPONENTS, NETWORKS, POINTS, RESULTS, SETTLED, STARTS, STEPS, STUCK_GAP, measure
from experiments.engine import figures, measures, tables
from experiments.engine.evidence import verdict_of
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Experiment, Finding

NAME = "loss-landscape"
CLAIMED = tuple(e for e in EXPONENTS if 0.5 < e < 1)
ONE_LAYER = ("one layer",)
DEEP = tuple(name for name in NETWORKS if name.startswith("deep"))


def collect(folder: Path) -> Data:
    results = measures.results_in(folder, RESULTS, NAME)
    made = {key: results[key] for key in ("seconds", "machine", "settings")} | {"commands": measures.commands(folder)}
    return {"provenance": made, "rows": results["rows"]}


def table(data: Data) -> str:
    """Stuck and settled starts of all seeds, by e."""
    exponents = sorted({row["e"] for row in data["rows"]})
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in data["rows"]:
        groups.setdefault((row["network"], row["base"].replace("_", " "), row["data"]), []).append(row)
    lines = [
        (*group, *(_cell([row for row in rows if row["e"] == e]) for e in exponents)) for group, rows in groups.items()
    ]
    unmoved, starts = (sum(row[key] for row in data["rows"] if row["e"] == 0) for key in ("unmoved", "starts"))
    return (
        f"Settled: a second descent lowered the risk by less than {SETTLED} nats. Stuck: settled more than {STUCK_GAP} "
        "above the lowest risk that a start with the same data found. Stuck of settled starts, all seeds together:\n\n"
        f"{tables.markdown(('network', 'loss', 'data', *(f'e {e:g}' for e in exponents)), lines)}\n"
        f"At e 0, {unmoved} of {starts} starts never moved."
    )


def _cell(rows: Sequence[Row]) -> str:
    return f"{sum(row['stuck'] for row in rows)} of {sum(row['settled'] for row in rows)}"


def counts(data: Data, networks: Sequence[str], exponent: float) -> tuple[int, int]:
    """How many starts are stuck, and how many settled."""
    rows = [row for row in data["rows"] if row["network"] in networks and row["e"] == exponent]
    return sum(row["stuck"] for row in rows), sum(row["settled"] for row in rows)


def one_minimum(data: Data, *, networks: Sequence[str]) -> Finding | None:
    """None where no start of some exponent settled: that none of them is stuck then says nothing."""
    by_exponent = {e: counts(data, networks, e) for e in CLAIMED}
    if not all(settled for _, settled in by_exponent.values()):
        return None
    words = ", ".join(
        f"e {e:g}: {stuck} of {settled} settled starts stuck" for e, (stuck, settled) in by_exponent.items()
    )
    control, judged = counts(data, networks, 1.0)
    verdict = verdict_of([stuck == 0 for stuck, _ in by_exponent.values()])
    seeds = (len({row["seed"] for row in data["rows"]}),)
    return Finding(ours=f"{words} (e 1: {control} of {judged})", verdict=verdict, seeds=seeds)


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    panels = []
    for kind in dict.fromkeys(row["data"] for row in data["rows"]):
        for key, title in (("gap", "highest less lowest risk, nats"), ("stuck", "stuck starts, per cent")):
            points = [
                {
                    "series": f"{row['network']}, {row['base'].replace('_', ' ')}",
                    "detail": str(row["seed"]),
                    "e": row["e"],
                    "gap": row["highest"] - row["lowest"],
                    "stuck": 100 * row["stuck"] / row["starts"],
                }
                for row in data["rows"]
                if row["data"] == kind
            ]
            names = list(dict.fromkeys(point["series"] for point in points))
            axes: dict[str, Any] = {"x": "e", "y": key, "x_title": "e", "y_title": title, "names": names}
            panels.append(figures.lines(points, points=True, title=kind, width=300, height=190, **axes))
    alt = drawing()
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))


EXPERIMENT = Experiment(
    name=NAME,
    question="Does descent on the e-exponentiated loss reach the same risk from every start?",
    method=(
        f"{POINTS} points in 6 dimensions and 4 classes with 20 % wrong labels, with and without 10 % outliers at ten "
        f"times their distance; linear and deep linear networks in float64, c = 0.01; {STARTS} random starts whose "
        f"scores have sizes from 0.1 to 10. Each start makes two descents of {STEPS:,} full-batch steps of Adam (at "
        "0.1, then 0.02, each falling along a cosine) and keeps the lowest risk on its way. Where starts end apart, "
        "descent does not always reach the lowest risk. This does not show that each end is exactly stationary: the "
        "transform has a kink at c, where a minimum need not have a gradient of zero. Width 2 is narrower than input "
        "and output, which no statement covers. The rules were written after a short look at seed 0 with 8 starts and "
        "300 steps."
    ),
    cost="CPU: about 8 minutes on one core for --seeds 0,1,2; --quick: seconds",
    caption=(
        "Gap between the highest and the lowest risk (left) and share of starts that are stuck (right) against e, by "
        "network and base loss, with one row per kind of data; points are means over seeds, and bars go from the "
        "lowest to the highest."
    ),
    claims={
        "one-layer": Claim(
            text="one layer, 0.5 < e < 1: all stationary points of the e-exponentiated risk are global minima",
            paper="arXiv 1902.06127, abstract of the first version; later dropped",
            rule=f"e {', '.join(f'{e:g}' for e in CLAIMED)}, both losses and both kinds of data: holds if no settled "
            f"start is more than {STUCK_GAP} nats above the lowest, partly if this is so at some e",
            judge=partial(one_minimum, networks=ONE_LAYER),
        ),
        "deep": Claim(
            text="the same for deep linear networks whose hidden layers are at least as wide as the input",
            paper="our question, not stated there. What is proved for such networks (arXiv 1712.01473) is that local "
            "minima, not all stationary points, are global, for a loss that is convex and differentiable in the "
            "scores; the transformed loss is neither",
            rule="the same rule at widths 6 and 12",
            judge=partial(one_minimum, networks=DEEP),
        ),
    },
    collect=collect,
    table=table,
    figure=figure,
    measure=measure,
)
