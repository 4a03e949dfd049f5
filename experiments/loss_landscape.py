"""Does descent on the e-exponentiated loss reach the same risk from every start, as its first abstract says?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.descent import EXPONENTS, NETWORKS, POINTS, RESULTS, SETTLED, STARTS, STEPS, STUCK_GAP, measure
from experiments.engine import figures, measures
from experiments.engine.recipe import Claim, Finding, Recipe, Summary, verdict_of

CLAIMED = tuple(e for e in EXPONENTS if 0.5 < e < 1)
LOW = tuple(e for e in EXPONENTS if 0 < e <= 0.5)
DEEP = tuple(name for name in NETWORKS if name.startswith("deep"))


def summarise(folder: Path) -> Summary:
    """Where the starts ended, by network and exponent."""
    path = folder / RESULTS
    if not path.is_file():
        raise ValueError(f"{folder} holds no {RESULTS}; run `python -m experiments loss-landscape` first")
    results = measures.read_json(path)
    made = {key: results[key] for key in ("seconds", "machine", "settings")}
    made["commands"] = measures.read_json(folder / "commands.json")
    rows = results["rows"]
    found = {"one-layer": _finding(rows, ("one layer",)), "deep": _finding(rows, DEEP)}
    findings = {claim: finding for claim, finding in found.items() if finding is not None}
    data = {"provenance": made, "rows": rows}
    return Summary(data=data, table=_table(rows), sentences=_sentences(rows), findings=findings)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ("network", "loss", "data", "e", "lowest risk", "highest", "settled", "stuck", "never moved")
    cells = [
        (
            *(row[key] for key in ("network", "base", "data")),
            f"{row['e']:g}",
            f"{row['lowest']:.4f}",
            f"{row['highest']:.4f}",
            *(f"{row[key]} of {row['starts']}" for key in ("settled", "stuck", "unmoved")),
        )
        for row in rows
    ]
    return (
        f"Risk: mean loss over the points, in nats. Settled: a second descent lowered it by less than {SETTLED}. "
        f"Stuck: settled more than {STUCK_GAP} above the lowest of the row.\n\n{measures.markdown(header, cells)}"
    )


def _counts(rows: Sequence[dict[str, Any]], networks: Sequence[str], exponents: Sequence[float]) -> tuple[int, int]:
    """Stuck and settled starts."""
    chosen = [row for row in rows if row["network"] in networks and row["e"] in exponents]
    return sum(row["stuck"] for row in chosen), sum(row["settled"] for row in chosen)


def _finding(rows: Sequence[dict[str, Any]], networks: Sequence[str]) -> Finding | None:
    """None where starts of some exponent never settled: that none of them is stuck says nothing then."""
    by_exponent = {e: _counts(rows, networks, (e,)) for e in CLAIMED}
    words = ", ".join(
        f"e {e:g}: {stuck} of {settled} settled starts stuck" for e, (stuck, settled) in by_exponent.items()
    )
    if not all(settled for _, settled in by_exponent.values()):
        return None
    control, judged = _counts(rows, networks, (1.0,))
    same = [stuck == 0 for stuck, _ in by_exponent.values()]
    return Finding(ours=f"{words} (e 1: {control} of {judged})", verdict=verdict_of(same))


def _sentences(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    said = []
    for name, networks in (("One layer", ("one layer",)), ("Deep linear", DEEP), ("Narrow", ("narrow, width 2",))):
        parts = []
        for exponents, words in (((1.0,), "e 1"), (CLAIMED, "0.5 < e < 1"), (LOW, "0 < e <= 0.5"), ((0.0,), "e 0")):
            stuck, settled = _counts(rows, networks, exponents)
            parts.append(f"{words} {stuck} of {settled}")
        said.append(f"{name}: settled starts that are stuck above the lowest risk: {', '.join(parts)}.")
    unmoved = [row for row in rows if row["e"] == 0]
    moved_elsewhere = sum(row["unmoved"] for row in rows if row["e"] > 0)
    said.append(
        f"At e 0 the gradient is zero wherever every score is beyond c: {sum(r['unmoved'] for r in unmoved)} of "
        f"{sum(r['starts'] for r in unmoved)} starts never moved; {moved_elsewhere} at any other e."
    )
    return tuple(said)


def figure(data: dict[str, Any]) -> Any:
    """The gap between the highest and the lowest risk, and the share of starts that are stuck, against e."""
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
            panels.append(figures.lines(points, points=True, title=kind, width=240, height=200, **axes))
    alt = drawing()
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))


RECIPE = Recipe(
    name="loss-landscape",
    question="Does descent on the e-exponentiated loss reach the same risk from every start?",
    method=(
        f"{POINTS} points in 6 dimensions, 4 classes, 20 % wrong labels, with and without 10 % outliers at ten times "
        f"their distance; linear and deep linear networks in float64, c = 0.01; {STARTS} random starts whose scores "
        f"have sizes from 0.1 to 10. Two descents of {STEPS:,} full-batch steps of Adam (0.1, then 0.02, each falling "
        "by a cosine), the lowest risk on the way kept. That starts end apart shows that descent does not always reach "
        "the lowest risk; it does not show that each end is exactly stationary, since the transform has a kink at c, "
        "where a minimum need not have a gradient of zero. Width 2 is narrower than input and output, which no "
        "statement covers. The rules were written after a short look at seed 0 with 8 starts and 300 steps."
    ),
    cost="CPU: about half an hour on one core; --quick: seconds",
    claims={
        "one-layer": Claim(
            text="one layer, 0.5 < e < 1: all stationary points of the e-exponentiated risk are global minima",
            paper="arXiv 1902.06127, abstract of the first version; later dropped",
            rule=f"e {', '.join(f'{e:g}' for e in CLAIMED)}, both losses and kinds of data: holds if no settled start "
            f"is more than {STUCK_GAP} nats above the lowest; partly if at some e",
        ),
        "deep": Claim(
            text="the same for deep linear networks at least as wide as input or output",
            paper="the same statement, asked of deep networks",
            rule="the same rule, widths 6 and 12",
        ),
    },
    summarise=summarise,
    figure=figure,
    measure=measure,
)
