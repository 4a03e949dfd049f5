"""The paper's figure 1: do the logits of plain attention explode where those of LS-attention stay small?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures, sight
from experiments.engine.base import AUTHOR_LR
from experiments.engine.recipe import Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.train import TrainConfig
from longshort.train.variants import VARIANTS

RATES = tuple(round(factor * AUTHOR_LR, 6) for factor in (1, 5, 16))
"""The author's learning rate, 5 and 16 times it."""
KINDS = ("plain", "ls")
CALM, EXPLODED = 100.0, 400.0
SPARSE_KEYS, SPARSE_SHARE = 20.0, 0.5


def arm_name(kind: str, rate: float) -> str:
    """
    >>> arm_name("plain", 0.0006), arm_name("ls", 0.0096)
    ('plain-6e-4', 'ls-9.6e-3')
    """
    return f"{kind}-{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")


NAMES = tuple(arm_name(kind, rate) for rate in RATES for kind in KINDS)


def arms(base: TrainConfig) -> Arms:
    """Plain and LS-attention at each learning rate."""
    return {
        arm_name(kind, rate): VARIANTS[kind](replace(base, optimizer=replace(base.optimizer, lr=rate)))
        for rate in RATES
        for kind in KINDS
    }


def summarise(folder: Path) -> Summary:
    """Perplexity and logits by learning rate, and where the trained heads look."""
    found = measures.outcomes(folder)
    grouped = measures.by_arm(found, NAMES)
    rows = [measures.row(name, runs) for name, runs in grouped.items()]
    looks = {name: look for name, runs in grouped.items() if (look := sight.of_runs(runs)) is not None}
    data = {
        "provenance": measures.provenance(found, folder),
        "rows": rows,
        "sight": looks,
        "curves": [measures.curves(name, outcome) for name, runs in grouped.items() for outcome in runs],
    }
    table = measures.standard_table(rows) + ("\n" + sight.table(looks) if looks else "")
    return Summary(data=data, table=table, sentences=_sentences(rows, looks), findings=_findings(rows, looks))


def _pairs(rows: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any], dict[str, Any]]]:
    """Rate, plain, LS: where both have run."""
    by_name = {row["arm"]: row for row in rows}
    names = [(rate, arm_name("plain", rate), arm_name("ls", rate)) for rate in RATES]
    return [(rate, by_name[p], by_name[s]) for rate, p, s in names if p in by_name and s in by_name]


def exploded(row: dict[str, Any]) -> bool:
    """Did some run of the arm pass the bound, lose a logit, or diverge?"""
    return bool(row["diverged"] or measures.peak(row) > EXPLODED)


def _sentences(rows: list[dict[str, Any]], looks: dict[str, dict[str, float]]) -> tuple[str, ...]:
    shown, said = measures.shown, []
    for rate, plain, ls in _pairs(rows):
        said.append(
            f"At {rate:g} plain attention's largest |logit| is {shown(plain['max_logit'], 3)} and LS-attention's "
            f"{shown(ls['max_logit'], 3)}; final perplexity {shown(plain['final_perplexity'])} against "
            f"{shown(ls['final_perplexity'])}; {plain['diverged']} of {len(plain['seeds'])} and {ls['diverged']} of "
            f"{len(ls['seeds'])} runs diverged."
        )
    for name in (arm_name("plain", AUTHOR_LR), arm_name("ls", AUTHOR_LR)):
        if name in looks:
            said.append(
                f"The median global head of {name} keeps {looks[name]['near_mass']:.0%} of its attention within 50 keys"
                f" and gives {looks[name]['far_keys']:.1f} farther keys more than 1 % each."
            )
    return tuple(said)


def _findings(rows: list[dict[str, Any]], looks: dict[str, dict[str, float]]) -> dict[str, Finding]:
    pairs, shown = _pairs(rows), measures.shown
    found: dict[str, Finding] = {}
    if len(pairs) == len(RATES):
        calm = [measures.peak(ls) < CALM for _, _, ls in pairs]
        ours = ", ".join(f"{shown(ls['max_logit'], 3)} at {rate:g}" for rate, _, ls in pairs)
        found["calm"] = Finding(ours=ours, verdict=verdict_of(calm))
        ours = ", ".join(
            f"{shown(plain['max_logit'], 3)}{' (diverged)' if plain['diverged'] else ''} at {rate:g}"
            for rate, plain, _ in pairs
        )
        found["explodes"] = Finding(ours=ours, verdict=verdict_of([exploded(plain) for _, plain, _ in pairs]))
    sparse = {name: look for name, look in looks.items() if name.startswith("ls-")}
    if len(sparse) == len(RATES):
        good = [s["far_keys"] < SPARSE_KEYS and s["far_noticed"] > SPARSE_SHARE for s in sparse.values()]
        ours = "; ".join(
            f"{name}: {s['far_keys']:.1f} keys above 1 %, {s['far_noticed']:.0%} of the far mass on them"
            for name, s in sparse.items()
        )
        found["sparse"] = Finding(ours=ours, verdict=verdict_of(good))
    return found


def figure(data: dict[str, Any]) -> Any:
    """Perplexity and largest |logit| over steps, a column a learning rate; below, every head at the end."""
    from longshort.report.charts import drawing

    alt = drawing()
    columns = {rate: [c for c in data["curves"] if c["arm"] in {arm_name(k, rate) for k in KINDS}] for rate in RATES}
    tops, middles, bottoms = [], [], []
    for rate, curves in columns.items():
        common: dict[str, Any] = {"x": "step", "x_title": "step", "names": KINDS, "log": True}
        validation, logits = figures.points(curves, series=lambda arm: arm.partition("-")[0])
        title = f"learning rate {rate:g}"
        tops.append(figures.lines(validation, y="perplexity", y_title="validation perplexity", title=title, **common))
        middles.append(figures.lines(logits, y="logit", y_title="max |logit|", **common))
        bottoms += figures.heads(curves, size=105)
    rows = [alt.hconcat(*panels).resolve_scale(y="shared") for panels in (tops, middles)]
    if bottoms:
        rows.append(alt.hconcat(*bottoms).resolve_scale(color="shared"))
    return alt.vconcat(*rows).resolve_scale(color="independent")


RECIPE = Recipe(
    name="explosion",
    question="Do plain attention's logits explode where LS-attention's stay small?",
    method=(
        "The author's model, optimizer and rows of 2,048 tokens, plain attention against LS with 1 global and 5 local "
        "heads of window 50, at the author's learning rate, 5 and 16 times it. 16 rows a step instead of 256 and "
        "thousands of steps instead of 50,000; books, not PG-19's own split; a BPE of 10,000."
    ),
    cost="H200: about 5 minutes for one seed, six at a time; CPU --quick: a minute",
    claims={
        "calm": Claim(
            text="LS-attention's largest |logit| stays small",
            paper="< 50",
            rule=f"holds if it stays below {CALM:g} at all three rates; partly if at some",
        ),
        "explodes": Claim(
            text="plain attention's largest |logit| explodes or training diverges",
            paper="> 200 to > 400, diverges after 20-30k steps",
            rule=f"holds if it passes {EXPLODED:g}, is not finite, or the run diverges, at all three rates; partly if "
            "at some",
        ),
        "sparse": Claim(
            text="long-range dependencies are sparse",
            paper="assumed",
            rule=f"holds if the median global head of LS gives fewer than {SPARSE_KEYS:g} far keys more than 1 % and "
            f"these hold over {SPARSE_SHARE:.0%} of its far mass, at every rate; partly if at some",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    steps=4000,
)
