"""Does plain attention diverge in every long run, and LS-attention in none?

In the paper plain attention diverges after 20,000 to 30,000 steps at the author's learning rate. Short sweeps cannot
show that: here plain and LS-attention train for as long as the call allows. `scale` asks the same of a larger model and
takes its variants, data, tables and figure from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import CHANCE, FAILS, FEWEST_SEEDS, HOLDS, NOT_RUN, PARTLY, UNDECIDED, by_chance
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import shown
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

KINDS = ("plain", "ls")
PAPER_DIVERGES = 20_000
"""Steps after which the paper's plain attention starts to diverge."""


def variants(base: TrainConfig) -> Variants:
    """One pair."""
    return {kind: VARIANTS[kind](base) for kind in KINDS}


def collect(folder: Path, kinds: Sequence[str] = KINDS) -> Data:
    """Rows and curves, and how fast each variant is alone on the device, where that was timed."""
    seconds = measures.step_seconds(folder)

    def parts(variant: str, runs: Sequence[Outcome]) -> Row:
        config = runs[0].run.config
        tokens = config["data"]["batch_size"] * (config["data"]["length"] or config["model"]["context"])
        return {
            "evaluated": max(outcome.run.evaluations[-1].step for outcome in runs),
            "tokens_per_second_alone": tokens / seconds[variant] if variant in seconds else None,
        }

    return measures.data_of(measures.outcomes(folder), folder, kinds, parts=parts)


def table(data: Data) -> str:
    return tables.losses(data)


def speed_table(data: Data) -> str:
    """How fast each variant is alone on the device; nothing where that was not timed."""
    speeds = [(row["variant"], row["tokens_per_second_alone"]) for row in data["rows"]]
    lines = [(variant, shown(speed)) for variant, speed in speeds if speed is not None]
    return tables.markdown(("variant", "tokens/s alone (--time-steps)"), lines) if lines else ""


def runs_table(data: Data) -> str:
    """Every run: how far it got, and where its validation loss left its best for good."""
    lines = []
    for run in data["curves"]:
        losses = [(step, math.inf if loss is None else loss) for step, loss in run["validation"]]
        best = min(loss for _, loss in losses)
        near = max(i for i, (_, loss) in enumerate(losses) if loss <= best + measures.DIVERGED)
        peaks = [value for _, value in run["logits"] if value is not None]
        lines.append(
            (
                run["variant"],
                run["seed"],
                losses[-1][0],
                shown(measures.perplexity(best)),
                shown(measures.perplexity(losses[-1][1])),
                shown(max(peaks, default=None), 3),
                losses[near + 1][0] if near + 1 < len(losses) else "never",
            )
        )
    far = f"{measures.DIVERGED:g} nats above its best from step"
    header = ("variant", "seed", "last evaluation", "best perplexity", "last perplexity", "max abs logit", far)
    return tables.markdown(header, lines)


def more(data: Data) -> str:
    return f"{runs_table(data)}\n{speed_table(data)}"


def pair(data: Data) -> tuple[Row, Row] | None:
    """Plain and LS, where both have run."""
    rows = measures.by_name(data)
    return (rows["plain"], rows["ls"]) if set(KINDS) <= rows.keys() else None


def logits(data: Data) -> Finding | None:
    both = pair(data)
    return None if both is None else comparison.logits_against(ls=both[1], plain=both[0])


def diverges(data: Data) -> Finding | None:
    """Too few steps decide nothing: LS must get as far as plain attention did, or to where the paper's diverged."""
    if (both := pair(data)) is None:
        return None
    plain, ls = both
    (lost, of), (ls_lost, ls_of) = ((row["diverged"], len(row["seeds"])) for row in both)
    came_far = min(ls["steps"]) >= min(max(plain["steps"]), PAPER_DIVERGES)
    few = min(of, ls_of) < FEWEST_SEEDS  # the verdict says so
    verdict = NOT_RUN
    if lost and lost / of <= ls_lost / ls_of:
        verdict = FAILS
    elif lost and came_far and not few and by_chance(lost, of, ls_lost, ls_of) > CHANCE:
        verdict = UNDECIDED
    elif lost and came_far:
        verdict = HOLDS if lost == of and not ls_lost else PARTLY
    elif not lost and min(plain["steps"]) >= PAPER_DIVERGES:
        verdict = FAILS
    ours = f"plain diverged in {lost} of {of} seeds by step {max(plain['steps']):,}, "
    ours += f"LS in {ls_lost} of {ls_of} by step {max(ls['steps']):,}"
    return Finding(ours=ours, verdict=verdict, seeds=comparison.seeds_of(plain, ls))


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    alt = drawing()
    names = [row["variant"] for row in data["rows"]]
    curves = alt.hconcat(*figures.over_steps(data, names, width=340, height=230, each_seed=True))
    panels = figures.heads(data["curves"], size=130)
    if not panels:
        return curves
    heads = alt.hconcat(*panels).resolve_scale(color="shared")
    return alt.vconcat(curves, heads).resolve_scale(color="independent", strokeDash="independent")


CAPTION = (
    "Validation perplexity and largest |logit| over steps, with one line per seed. "
    "Below, the |logit| of every head at the last step of the first seed."
)
EXPERIMENT = Experiment(
    name="endurance",
    question="Does plain attention diverge in every long run, and LS-attention in none?",
    method=(
        "The author's model, learning rate, warm-up of 2,000 steps and sequences of 2,048 tokens, for as many of his "
        "50,000 steps as `--minutes` allows; 16 sequences per step instead of 256."
    ),
    cost="H200: about 20 minutes for 50,000 steps of both, or less with --minutes; CPU --quick: seconds",
    caption=CAPTION,
    claims={
        "logits": Claim(
            text="largest |logit| in a long run, LS against plain",
            paper="< 50 vs > 200 to > 400",
            rule=f"{comparison.LOGITS_RULE}: holds if both, partly if one",
            judge=logits,
        ),
        "diverges": Claim(
            text="plain attention diverges and LS does not",
            paper="after 20-30k steps",
            rule="holds if plain attention diverges in every seed and LS in none, partly if plain attention diverges "
            "in a larger share of its seeds, undecided if three seeds or more may differ so by chance (Fisher's exact "
            f"test, 5 %); decided after {PAPER_DIVERGES:,} steps, or as soon as plain attention diverges and LS has "
            "taken as many steps",
            judge=diverges,
        ),
    },
    collect=collect,
    table=table,
    more=more,
    figure=figure,
    variants=variants,
    settings={
        "schedule.warmup": 2000,
        "run.save_every": 5000,
        "telemetry.logits_every": 10,
    },
    steps=50_000,
)
