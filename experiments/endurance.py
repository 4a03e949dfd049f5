"""How does one pair fare towards the paper's 50,000 steps?

In the paper plain attention diverges after 20,000 to 30,000 steps at the author's learning rate. Short sweeps cannot
show that: here plain and LS-attention train for as long as they are given. `scale` asks the same of a larger model, and
takes its variants, data, tables and figure from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures, tables
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import FAILS, HOLDS, NOT_RUN, PARTLY, Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import shown
from longshort.train import TrainConfig
from longshort.train.variants import VARIANTS

KINDS = ("plain", "ls")
PAPER_DIVERGES = 20_000
"""Steps after which the paper's plain attention starts to diverge."""


def variants(base: TrainConfig) -> Variants:
    """One pair."""
    return {kind: VARIANTS[kind](base) for kind in KINDS}


def collect(folder: Path) -> Data:
    """Rows and curves, and how fast each variant is alone, where that was timed."""
    seconds = measures.step_seconds(folder)

    def parts(variant: str, runs: Sequence[Outcome]) -> Row:
        config = runs[0].run.config
        tokens = config["data"]["batch_size"] * (config["data"]["length"] or config["model"]["context"])
        return {
            "evaluated": max(outcome.run.evaluations[-1].step for outcome in runs),
            "tokens_per_second_alone": tokens / seconds[variant] if variant in seconds else None,
        }

    return measures.data_of(measures.outcomes(folder), folder, KINDS, parts=parts)


def table(data: Data) -> str:
    return tables.losses(data["rows"])


def speed_table(data: Data) -> str:
    lines = [
        (
            row["variant"],
            shown(row["shared_tokens_per_second"]),
            "not timed" if row["tokens_per_second_alone"] is None else shown(row["tokens_per_second_alone"]),
        )
        for row in data["rows"]
    ]
    return tables.markdown(("variant", "tokens/s in the run", "tokens/s alone (--time-steps)"), lines)


def pair(data: Data) -> tuple[Row, Row] | None:
    """Plain and LS, where both have run."""
    rows = measures.by_name(data)
    return (rows["plain"], rows["ls"]) if set(KINDS) <= rows.keys() else None


def logits(data: Data) -> Finding | None:
    if (both := pair(data)) is None:
        return None
    plain, ls = both
    ours = f"LS {shown(ls['max_logit'], 3)}, plain {shown(plain['max_logit'], 3)} in {max(plain['steps']):,} steps"
    big, calm = measures.peak(plain) > 200, measures.peak(ls) < 50
    return Finding(ours=ours, verdict=HOLDS if big and calm else PARTLY if big or calm else FAILS)


def diverges(data: Data) -> Finding | None:
    if (both := pair(data)) is None:
        return None
    plain, ls = both
    ended = f"plain {'diverged' if plain['diverged'] else 'did not'}, LS {'diverged' if ls['diverged'] else 'did not'}"
    taken = max(plain["steps"])
    verdict = NOT_RUN  # too few steps decide nothing
    if plain["diverged"] and ls["diverged"]:
        verdict = FAILS
    elif plain["diverged"] and max(ls["steps"]) >= min(taken, PAPER_DIVERGES):
        verdict = HOLDS
    elif not plain["diverged"] and taken >= PAPER_DIVERGES:
        verdict = FAILS
    return Finding(ours=f"{ended}, in {taken:,} steps", verdict=verdict)


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    curves, panels = figures.over_steps(data, KINDS, width=330, height=230), figures.heads(data["curves"], size=150)
    if not panels:
        return curves
    heads = drawing().hconcat(*panels).resolve_scale(color="shared")
    return drawing().hconcat(curves, heads).resolve_scale(color="independent")


CAPTION = (
    "Validation perplexity and largest |logit| over steps; on the right the last |logit| of every head, layer by layer."
)
EXPERIMENT = Experiment(
    name="endurance",
    question="How does one pair fare towards the paper's 50,000 steps?",
    method=(
        "The author's model, learning rate, warm-up of 2,000 steps and sequences of 2,048 tokens, as far towards "
        "50,000 steps as `--minutes` takes it; 16 sequences per step instead of 256."
    ),
    cost="H200: as long as it is given, about 20 minutes for 50,000 steps of both; CPU --quick: seconds",
    caption=CAPTION,
    claims={
        "logits": Claim(
            text="largest |logit| in a long run, LS against plain",
            paper="< 50 vs > 200 to > 400",
            rule="holds if LS < 50 and plain > 200 (or not finite); partly if one of them",
            judge=logits,
        ),
        "diverges": Claim(
            text="plain attention diverges and LS does not",
            paper="after 20-30k steps",
            rule=f"decided by {PAPER_DIVERGES:,} steps, or as soon as plain attention diverges, of LS after as many",
            judge=diverges,
        ),
    },
    collect=collect,
    table=table,
    more=speed_table,
    figure=figure,
    variants=variants,
    settings={
        "schedule.warmup": 2000,
        "run.save_every": 5000,
        "telemetry.logits_every": 10,
    },
    steps=50_000,
)
