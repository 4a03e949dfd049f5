"""Plain attention and LS-attention for long, and at GPT-2's size: two recipes of one pair each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures
from experiments.engine.recipe import FAILS, HOLDS, NOT_RUN, PARTLY, Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.train import TrainConfig
from longshort.train.variants import VARIANTS

KINDS = ("plain", "ls")
PAPER_DIVERGES = 20_000
"""Steps after which the paper's plain attention starts to diverge."""


def arms(base: TrainConfig) -> Arms:
    """One pair."""
    return {kind: VARIANTS[kind](base) for kind in KINDS}


def _summarise(folder: Path, *, endurance: bool) -> Summary:
    found = measures.outcomes(folder)
    grouped, seconds = measures.by_arm(found, KINDS), measures.step_seconds(folder)
    rows = [measures.row(name, runs) for name, runs in grouped.items()]
    for row in rows:
        config = grouped[row["arm"]][0].run.config
        tokens = config["data"]["batch_size"] * (config["data"]["length"] or config["model"]["context"])
        row["evaluated"] = max(outcome.run.evaluations[-1].step for outcome in grouped[row["arm"]])
        row["tokens_per_second_alone"] = tokens / seconds[row["arm"]] if row["arm"] in seconds else None
    data = {
        "provenance": measures.provenance(found, folder),
        "rows": rows,
        "curves": [measures.curves(name, outcome) for name, runs in grouped.items() for outcome in runs],
    }
    by_name = {row["arm"]: row for row in rows}
    findings = {}
    if all(kind in by_name for kind in KINDS):
        findings = (_endured if endurance else _scaled)(by_name["plain"], by_name["ls"])
    table = measures.standard_table(rows) + "\n" + _speed_table(rows)
    return Summary(data=data, table=table, sentences=_sentences(rows), findings=findings)


def _speed_table(rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        (
            row["arm"],
            measures.shown(row["shared_tokens_per_second"]),
            "not timed" if row["tokens_per_second_alone"] is None else measures.shown(row["tokens_per_second_alone"]),
        )
        for row in rows
    ]
    return measures.markdown(("arm", "tokens/s in the run", "tokens/s alone (--time-steps)"), cells)


def _sentences(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    shown = measures.shown
    return tuple(
        f"{row['arm']}: {max(row['steps']):,} steps, perplexity {shown(row['final_perplexity'])} at the last "
        f"evaluation, step {row['evaluated']:,} (best {shown(row['best_perplexity'])}), largest |logit| "
        f"{shown(row['max_logit'], 3)}, {row['spikes']} spikes, "
        f"{row['diverged']} of {len(row['seeds'])} runs diverged."
        for row in rows
    )


def _endured(plain: dict[str, Any], ls: dict[str, Any]) -> dict[str, Finding]:
    shown = measures.shown
    ours = f"LS {shown(ls['max_logit'], 3)}, plain {shown(plain['max_logit'], 3)} in {max(plain['steps']):,} steps"
    big, calm = measures.peak(plain) > 200, measures.peak(ls) < 50
    logits = Finding(ours=ours, verdict=HOLDS if big and calm else PARTLY if big or calm else FAILS)
    ended = f"plain {'diverged' if plain['diverged'] else 'did not'}, LS {'diverged' if ls['diverged'] else 'did not'}"
    ours = f"{ended}, in {max(plain['steps']):,} steps"
    verdict = NOT_RUN  # too few steps decide nothing
    if plain["diverged"] and ls["diverged"]:
        verdict = FAILS
    elif plain["diverged"] and max(ls["steps"]) >= min(max(plain["steps"]), PAPER_DIVERGES):
        verdict = HOLDS
    elif not plain["diverged"] and max(plain["steps"]) >= PAPER_DIVERGES:
        verdict = FAILS
    return {"logits": logits, "diverges": Finding(ours=ours, verdict=verdict)}


def _scaled(plain: dict[str, Any], ls: dict[str, Any]) -> dict[str, Finding]:
    if not measures.equal_steps(plain, ls):
        return {}
    shown = measures.shown
    ours = f"perplexity {shown(ls['final_perplexity'])} against {shown(plain['final_perplexity'])}, largest |logit| "
    ours += f"{shown(ls['max_logit'], 3)} against {shown(plain['max_logit'], 3)}, in {max(plain['steps']):,} steps"
    mine, theirs = (row["final_perplexity"] or float("inf") for row in (ls, plain))
    lower = [mine < theirs, measures.peak(ls) < measures.peak(plain)]
    return {"scale": Finding(ours=ours, verdict=verdict_of(lower))}


def figure(data: dict[str, Any]) -> Any:
    """Validation perplexity and the largest |logit| over steps; beside them, every head at the end."""
    from longshort.report.charts import drawing

    curves, panels = figures.over_steps(data, KINDS, width=330, height=230), figures.heads(data["curves"], size=150)
    if not panels:
        return curves
    heads = drawing().hconcat(*panels).resolve_scale(color="shared")
    return drawing().hconcat(curves, heads).resolve_scale(color="independent")


ENDURANCE = Recipe(
    name="endurance",
    question="How does one pair fare towards the paper's 50,000 steps?",
    method=(
        "The author's model, learning rate, warm-up of 2,000 steps and rows of 2,048 tokens, as far towards 50,000 "
        "steps as `--minutes` takes it; 16 rows a step instead of 256."
    ),
    cost="H200: as long as it is given, about 20 minutes for 50,000 steps of both; CPU --quick: seconds",
    claims={
        "logits": Claim(
            text="largest |logit| in a long run, LS against plain",
            paper="< 50 vs > 200 to > 400",
            rule="holds if LS < 50 and plain > 200 (or not finite); partly if one of them",
        ),
        "diverges": Claim(
            text="plain attention diverges and LS does not",
            paper="after 20-30k steps",
            rule=f"decided by {PAPER_DIVERGES:,} steps, or as soon as plain attention diverges, of LS after as many",
        ),
    },
    summarise=functools.partial(_summarise, endurance=True),
    figure=figure,
    arms=arms,
    settings={
        "schedule.warmup": 2000,
        "run.save_every": 5000,
        "telemetry.logits_every": 10,
    },
    steps=50_000,
)
SCALE = Recipe(
    name="scale",
    question="Does it hold at GPT-2's size and rows of 4,096 tokens?",
    method=(
        "GPT-2 small (12 layers, width 768, 12 heads) with the vocabulary of the data, rows of 4,096 tokens, 8 a step, "
        "learning rate 6e-4; LS with one global head and a window of 128. As many steps as the GPU time allows."
    ),
    cost="H200: about 20 minutes for both, two at a time; CPU --quick: seconds",
    claims={
        "scale": Claim(
            text="the effect holds in a larger model",
            paper="12 layers of width 768, window 100; numbers unknown to us",
            rule="after equal steps LS lower than plain in final perplexity and in largest |logit|: holds if both, "
            "partly if one",
        ),
    },
    summarise=functools.partial(_summarise, endurance=False),
    figure=figure,
    arms=arms,
    settings={
        "model.preset": "gpt2-small",
        "model.context": 4096,
        "data.batch_size": 8,
    },
    steps=2000,
)
