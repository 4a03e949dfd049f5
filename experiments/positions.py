"""Does the effect depend on how positions are encoded?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures
from experiments.engine.recipe import Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.train import TrainConfig
from longshort.train.variants import VARIANTS

ENCODINGS = ("learned", "rotary", "alibi", "sinusoidal", "none")
KINDS = ("plain", "ls")
NAMES = tuple(f"{kind}-{encoding}" for encoding in ENCODINGS for kind in KINDS)


def arms(base: TrainConfig) -> Arms:
    """Plain and LS-attention with each encoding; learned is the paper's."""
    return {
        f"{kind}-{encoding}": VARIANTS[kind](replace(base, model=replace(base.model, positions=encoding)))
        for encoding in ENCODINGS
        for kind in KINDS
    }


def summarise(folder: Path) -> Summary:
    """Perplexity and logits of both kinds, encoding by encoding."""
    found = measures.outcomes(folder)
    grouped = measures.by_arm(found, NAMES)
    rows = [measures.row(name, runs) for name, runs in grouped.items()]
    data = {
        "provenance": measures.provenance(found, folder),
        "rows": rows,
        "curves": [measures.curves(name, outcome) for name, runs in grouped.items() for outcome in runs],
    }
    pairs = _pairs(rows)
    table = measures.standard_table(rows)
    return Summary(data=data, table=table, sentences=_sentences(pairs), findings=_findings(pairs))


def _pairs(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    by_name = {row["arm"]: row for row in rows}
    both = {e: (by_name.get(f"plain-{e}"), by_name.get(f"ls-{e}")) for e in ENCODINGS}
    return {e: (plain, ls) for e, (plain, ls) in both.items() if plain is not None and ls is not None}


def _better(plain: dict[str, Any], ls: dict[str, Any]) -> bool:
    """Is LS lower in final perplexity and in largest |logit|? What is not finite is larger than anything."""
    mine, theirs = (row["final_perplexity"] or float("inf") for row in (ls, plain))
    return mine < theirs and measures.peak(ls) < measures.peak(plain)


def _sentences(pairs: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> tuple[str, ...]:
    shown = measures.shown
    return tuple(
        f"{encoding}: final perplexity {shown(plain['final_perplexity'])} for plain attention and "
        f"{shown(ls['final_perplexity'])} for LS, largest |logit| {shown(plain['max_logit'], 3)} and "
        f"{shown(ls['max_logit'], 3)}."
        for encoding, (plain, ls) in pairs.items()
    )


def _findings(pairs: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Finding]:
    others = {
        encoding: (plain, ls)
        for encoding, (plain, ls) in pairs.items()
        if encoding != "learned" and measures.equal_steps(plain, ls)
    }
    if not others:
        return {}
    better = [encoding for encoding, (plain, ls) in others.items() if _better(plain, ls)]
    ours = f"with {', '.join(better) or 'none'} of {', '.join(others)}"
    verdict = verdict_of([name in better for name in others], of=len(ENCODINGS) - 1)
    return {"positions": Finding(ours=ours, verdict=verdict)}


def figure(data: dict[str, Any]) -> Any:
    """The largest |logit| over steps, a panel for each encoding; below, the perplexity."""

    from longshort.report.charts import drawing

    alt = drawing()
    tops, bottoms = [], []
    for encoding in ENCODINGS:
        curves = [c for c in data["curves"] if c["arm"].endswith(f"-{encoding}")]
        if not curves:
            continue
        common: dict[str, Any] = {"x": "step", "x_title": "step", "names": KINDS, "log": True, "width": 170}
        losses, logits = figures.points(curves, series=lambda arm: arm.partition("-")[0])
        tops.append(figures.lines(logits, y="logit", y_title="max |logit|", title=encoding, **common))
        bottoms.append(figures.lines(losses, y="perplexity", y_title="validation perplexity", **common))
    return alt.vconcat(*(alt.hconcat(*panels).resolve_scale(y="shared") for panels in (tops, bottoms)))


RECIPE = Recipe(
    name="positions",
    question="Does the effect hold with other positional encodings?",
    method=(
        "The author's model on rows of 2,048 tokens, 16 rows a step, 5 times the author's learning rate, short runs; "
        "learned positions, the paper's, beside rotary, ALiBi, sinusoidal and none."
    ),
    cost="H200: about 5 minutes for one seed, ten at a time; CPU --quick: a minute",
    claims={
        "positions": Claim(
            text="the effect does not depend on learned positions",
            paper="reviewers missed it",
            rule="LS lower than plain in final perplexity and in largest |logit|: holds with every other encoding, "
            "partly with some",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    settings={"optimizer.lr": 3e-3},
    steps=3000,
)
