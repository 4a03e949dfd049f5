"""Up to which learning rate does each variant train? The figure of Wortsman et al. with LS-attention in it.

Wortsman et al. (arXiv 2309.14322) show instabilities of large models in small ones by raising the learning rate: a
stable model has a flat valley of final losses over many rates. Here four kinds of attention train at five rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments import explosion
from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import paired, verdict_of
from experiments.engine.records import Claim, Data, Experiment, Finding
from experiments.engine.tables import shown
from experiments.explosion import at_rate

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
KINDS = ("plain", "qk-norm-head", "qk-clip", "ls")
NAMES = tuple(at_rate(kind, rate) for rate in RATES for kind in KINDS)
SLACK = 0.1
"""A variant's edge is its largest rate with a final loss at most this many nats above its own best."""


def edge(losses: Mapping[float, float | None]) -> float | None:
    """The largest rate of the unbroken stretch around the best one whose losses stay within `SLACK` of it.

    >>> edge({1e-3: 4.0, 3e-3: 3.8, 1e-2: 3.85, 3e-2: None})
    0.01
    """
    finite = {rate: loss for rate, loss in losses.items() if loss is not None and math.isfinite(loss)}
    if not finite:
        return None
    best = min(finite, key=lambda rate: finite[rate])
    last = best
    for rate in sorted(rate for rate in losses if rate > best):
        if finite.get(rate, math.inf) > finite[best] + SLACK:
            break
        last = rate
    return last


def sensitivity(losses: Mapping[float, float | None], *, ceiling: float) -> float | None:
    """Mean over rates of how far the loss is above the variant's best; losses above `ceiling` count as the ceiling.

    >>> sensitivity({1e-3: 4.0, 3e-3: 3.5, 1e-2: None}, ceiling=9.0)
    2.0
    """
    capped = [ceiling if loss is None else min(loss, ceiling) for loss in losses.values()]
    return sum(capped) / len(capped) - min(capped) if capped else None


def collect(folder: Path) -> Data:
    """The loss of each kind at each rate, its edge and its sensitivity."""
    found = measures.outcomes(folder)
    data = measures.data_of(found, folder, NAMES, curve=None)
    ceiling = math.log(found[0].run.config["model"]["vocab_size"])
    rows, kinds = measures.by_name(data), []
    for kind in KINDS:
        losses = {rate: rows[name]["final_loss"] for rate in RATES if (name := at_rate(kind, rate)) in rows}
        if losses:
            kinds.append(
                {
                    "kind": kind,
                    "losses": {f"{rate:g}": loss for rate, loss in losses.items()},
                    "edge": edge(losses),
                    "best": min((loss for loss in losses.values() if loss is not None), default=None),
                    "sensitivity": sensitivity(losses, ceiling=ceiling),
                }
            )
    return data | {"kinds": kinds, "ceiling": ceiling}


def table(data: Data) -> str:
    rates = [f"{rate:g}" for rate in RATES]
    rows = measures.by_name(data)
    header = ("final loss", "seeds", *(f"lr {rate}" for rate in rates), "edge", "sensitivity")
    lines = [
        (
            k["kind"],
            tables.span([len(rows[at_rate(k["kind"], float(rate))]["seeds"]) for rate in k["losses"]]),
            *(shown(k["losses"][rate]) if rate in k["losses"] else "not run" for rate in rates),
            "" if k["edge"] is None else f"{k['edge']:g}",
            shown(k["sensitivity"], 3),
        )
        for k in data["kinds"]
    ]
    return tables.markdown(header, lines)


def judge_edge(data: Data) -> Finding | None:
    kinds = {k["kind"]: k for k in data["kinds"] if len(k["losses"]) == len(RATES)}
    if not {"plain", "ls"} <= kinds.keys() or not comparison.equal_steps(*data["rows"]):
        return None
    plain, ls = kinds["plain"], kinds["ls"]
    if (found := paired(edges(data, "ls"), edges(data, "plain"))) is None:
        return None
    mine, theirs = ls["edge"] or 0.0, plain["edge"] or 0.0
    ours = f"edge {mine:g} against {theirs:g} (best loss {shown(ls['best'])} against {shown(plain['best'])})"
    seeds = (*comparison.seeds_of(*data["rows"]), found.seeds)
    return Finding(ours=ours, verdict=verdict_of([found.is_above()]), seeds=seeds)


def edges(data: Data, kind: str) -> dict[int, float]:
    """The logarithm of the edge, seed by seed."""
    rows = measures.by_name(data)
    losses = {rate: comparison.losses_by_seed(rows[at_rate(kind, rate)]) for rate in RATES}
    seeds = set.intersection(*({*rows[at_rate(kind, rate)]["seeds"]} for rate in RATES))
    found = {seed: edge({rate: own.get(seed) for rate, own in losses.items()}) for seed in sorted(seeds)}
    return {seed: math.log(rate) if rate else -math.inf for seed, rate in found.items()}


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    rows = measures.by_name(data)
    points = [
        {
            "series": kind,
            "detail": "",
            "rate": rate,
            "loss": None if row["final_loss"] is None else min(row["final_loss"], data["ceiling"]),
            "logit": row["max_logit"],
        }
        for kind in KINDS
        for rate in RATES
        if (row := rows.get(at_rate(kind, rate))) is not None
    ]
    common: dict[str, Any] = {"x": "rate", "x_title": "learning rate", "names": KINDS, "log_x": True, "points": True}
    size: dict[str, Any] = {"width": 340, "height": 230}
    return drawing().hconcat(
        figures.lines(points, y="loss", y_title="final validation loss", **common, **size),
        figures.lines(points, y="logit", y_title="max |logit|", log=True, **common, **size),
    )


EXPERIMENT = Experiment(
    name="lr-sensitivity",
    question="Up to which learning rate does each variant train?",
    method=(
        "The author's model on 16 sequences of 2,048 tokens per step, in short runs with a constant learning rate "
        "after a warm-up of 200 steps, at five rates over two decades (3e-4 to 3e-2). The edge is the largest rate "
        f"within {SLACK} nats of the variant's own best loss; the sensitivity is the mean distance from that best over "
        "all rates."
    ),
    cost="H200: about 10 minutes for one seed, seven at a time; CPU --quick: two minutes",
    caption="Final validation loss (left) and largest |logit| of the run (right) against the learning rate, one seed.",
    claims={
        "edge": Claim(
            text="LS-attention trains at learning rates at which plain attention does not",
            paper="claims stable training",
            rule="holds if LS has the larger edge (the whole paired interval); does not hold if the edges are equal",
            judge=judge_edge,
        ),
    },
    collect=collect,
    table=table,
    more=tables.losses,
    figure=figure,
    variants=partial(explosion.variants, kinds=KINDS, rates=RATES),
    steps=2500,
)
