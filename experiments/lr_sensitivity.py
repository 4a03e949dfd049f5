"""Final loss against learning rate, the figure of Wortsman et al. (arXiv 2309.14322) with LS-attention in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures
from experiments.engine.recipe import FAILS, HOLDS, PARTLY, Arms, Claim, Finding, Recipe, Summary
from experiments.explosion import arm_name
from longshort.train import TrainConfig
from longshort.train.variants import VARIANTS

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
KINDS = ("plain", "qk-norm-head", "qk-clip", "ls")
NAMES = tuple(arm_name(kind, rate) for rate in RATES for kind in KINDS)
SLACK = 0.1
"""An arm's edge is its largest rate with a final loss at most so many nats above its own best."""


def arms(base: TrainConfig) -> Arms:
    """Each kind at each rate."""
    return {
        arm_name(kind, rate): VARIANTS[kind](replace(base, optimizer=replace(base.optimizer, lr=rate)))
        for rate in RATES
        for kind in KINDS
    }


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
    """Mean over rates of how far the loss lies above the arm's best, losses above `ceiling` taken as it.

    >>> sensitivity({1e-3: 4.0, 3e-3: 3.5, 1e-2: None}, ceiling=9.0)
    2.0
    """
    capped = [ceiling if loss is None else min(loss, ceiling) for loss in losses.values()]
    return sum(capped) / len(capped) - min(capped) if capped else None


def summarise(folder: Path) -> Summary:
    """The loss of each kind at each rate, its edge and its sensitivity."""
    found = measures.outcomes(folder)
    grouped = measures.by_arm(found, NAMES)
    rows = [measures.row(name, runs) for name, runs in grouped.items()]
    losses = {
        kind: {rate: row["final_loss"] for row in rows for rate in RATES if row["arm"] == arm_name(kind, rate)}
        for kind in KINDS
    }
    ceiling = math.log(found[0].run.config["model"]["vocab_size"])
    kinds = [
        {
            "kind": kind,
            "losses": {f"{rate:g}": loss for rate, loss in of_kind.items()},
            "edge": edge(of_kind),
            "best": min((loss for loss in of_kind.values() if loss is not None), default=None),
            "sensitivity": sensitivity(of_kind, ceiling=ceiling),
        }
        for kind, of_kind in losses.items()
        if of_kind
    ]
    data = {"provenance": measures.provenance(found, folder), "rows": rows, "kinds": kinds, "ceiling": ceiling}
    table = _table(kinds) + "\n" + measures.standard_table(rows)
    findings = _findings(kinds) if measures.equal_steps(*rows) else {}
    return Summary(data=data, table=table, sentences=_sentences(kinds), findings=findings)


def _table(kinds: Sequence[dict[str, Any]]) -> str:
    rates = [f"{rate:g}" for rate in RATES]
    header = ("final loss", *(f"lr {rate}" for rate in rates), "edge", "sensitivity")
    cells = [
        (
            k["kind"],
            *(measures.shown(k["losses"][rate]) if rate in k["losses"] else "not run" for rate in rates),
            "" if k["edge"] is None else f"{k['edge']:g}",
            measures.shown(k["sensitivity"], 3),
        )
        for k in kinds
    ]
    return measures.markdown(header, cells)


def _sentences(kinds: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    said = [
        f"{k['kind']}: best final loss {measures.shown(k['best'])}, edge "
        f"{'none' if k['edge'] is None else format(k['edge'], 'g')} of the rates that were run, sensitivity "
        f"{measures.shown(k['sensitivity'], 3)}."
        for k in kinds
    ]
    return (" ".join(said), f"The edge is the largest rate within {SLACK} nats of the arm's own best.")


def _findings(kinds: Sequence[dict[str, Any]]) -> dict[str, Finding]:
    by_kind = {k["kind"]: k for k in kinds}
    plain, ls = by_kind.get("plain"), by_kind.get("ls")
    if plain is None or ls is None or len(plain["losses"]) < len(RATES) or len(ls["losses"]) < len(RATES):
        return {}
    mine, theirs = ls["edge"] or 0.0, plain["edge"] or 0.0
    ours = f"edge {mine:g} against {theirs:g}; best loss {measures.shown(ls['best'])} against "
    ours += measures.shown(plain["best"])
    lower = ls["best"] is not None and (plain["best"] is None or ls["best"] < plain["best"])
    verdict = HOLDS if mine > theirs and lower else PARTLY if mine >= theirs or lower else FAILS
    return {"edge": Finding(ours=ours, verdict=verdict)}


def figure(data: dict[str, Any]) -> Any:
    """Final loss and largest |logit| against the learning rate."""
    from longshort.report.charts import drawing

    by_arm = {row["arm"]: row for row in data["rows"]}
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
        if (row := by_arm.get(arm_name(kind, rate))) is not None
    ]
    common: dict[str, Any] = {"x": "rate", "x_title": "learning rate", "names": KINDS, "log_x": True, "points": True}
    size: dict[str, Any] = {"width": 360, "height": 260}
    return drawing().hconcat(
        figures.lines(points, y="loss", y_title="final validation loss", **common, **size),
        figures.lines(points, y="logit", y_title="max |logit|", log=True, **common, **size),
    )


RECIPE = Recipe(
    name="lr-sensitivity",
    question="Up to which learning rate does each arm train?",
    method=(
        "The author's model on rows of 2,048 tokens, 16 rows a step, constant learning rate after a warm-up of 200 "
        "steps, at five rates over two decades (3e-4 to 3e-2); short runs."
    ),
    cost="H200: about 10 minutes for one seed, seven at a time; CPU --quick: two minutes",
    claims={
        "edge": Claim(
            text="LS-attention trains at learning rates at which plain attention does not",
            paper="claims stable training",
            rule="holds if LS has the larger edge and the lower best loss; partly if one of them, or equal edges",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    steps=2500,
)
