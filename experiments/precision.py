"""Does plain attention diverge because it is computed in bf16?

Rounding in attention's backward pass has been named as the cause of such divergence (arXiv 2510.04212). Then no run
should diverge where all products are computed in TF32 or fp32. All seeds are compared, not those alone with which bf16
diverged: whether a run diverges is partly chance, and runs in two precisions part soon though they begin alike. The
recipe is that of `endurance`, in which plain attention left its best loss by step 10,000 with one of two seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.endurance import runs_table
from experiments.engine import figures, measures, tables
from experiments.engine.evidence import CHANCE, FAILS, FEWEST_SEEDS, HOLDS, PARTLY, UNDECIDED, by_chance
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

BF16, TF32, FP32 = "plain", "plain-tf32", "plain-fp32"
SETTINGS = {BF16: ("bf16", "highest"), TF32: ("fp32", "high"), FP32: ("fp32", "highest")}
"""`run.precision` and `run.matmul`; in fp32 the attention kernels follow the latter as well."""


def variants(base: TrainConfig) -> Variants:
    """Plain attention in three precisions."""
    plain = VARIANTS["plain"](base)
    return {
        name: replace(plain, run=replace(plain.run, precision=precision, matmul=matmul))
        for name, (precision, matmul) in SETTINGS.items()
    }


def collect(folder: Path) -> Data:
    return measures.data_of(measures.outcomes(folder), folder, tuple(SETTINGS), parts=_parts)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    return {"diverged_seeds": [outcome.run.seed for outcome in runs if outcome.diverged]}


def exact(data: Data) -> Finding | None:
    """Only runs that diverged or took as many steps as those in bf16 count; where none in bf16 did, all is open."""
    rows = measures.by_name(data)
    exacter = [rows[name] for name in (TF32, FP32) if name in rows]
    if BF16 not in rows or not exacter:
        return None
    far, (lost, of) = max(rows[BF16]["steps"]), _lost(rows[BF16])
    counts = [_lost(row, far) for row in exacter]
    others, of_others = (sum(numbers) for numbers in zip(*counts, strict=True))
    if not of_others:
        return None
    few = min(of, of_others) < FEWEST_SEEDS
    if not lost:
        verdict = UNDECIDED
    elif others:
        verdict = HOLDS if others / of_others >= lost / of else PARTLY
    else:
        verdict = FAILS if few or by_chance(lost, of, 0, of_others) <= CHANCE else UNDECIDED
    words = [
        f"{row['variant']} {some} of {runs}"
        for row, (some, runs) in zip((rows[BF16], *exacter), ((lost, of), *counts), strict=True)
    ]
    seeds = {seed for row in exacter for seed in row["seeds"]}
    ours = f"diverged within {far:,} steps of bf16: {', '.join(words)}"
    return Finding(ours=ours, verdict=verdict, seeds=(of, len(seeds)))


def _lost(row: Row, far: int = 0) -> tuple[int, int]:
    """How many runs diverged, of those that did or took so many steps."""
    lost = set(row["diverged_seeds"])
    came = {seed for seed, steps in zip(row["seeds"], row["steps"], strict=True) if steps >= far}
    return len(lost), len(lost | came)


def more(data: Data) -> str:
    return f"{runs_table(data)}\n{pairs_table(data)}"


def pairs_table(data: Data) -> str:
    """Losses and largest logits of both runs with a seed, up to the last step at which both were evaluated."""
    curves = {(curve["variant"], curve["seed"]): curve for curve in data["curves"]}
    lines = []
    for name, seed in curves:
        if name == BF16 or (BF16, seed) not in curves:
            continue
        losses = [dict(curves[key]["validation"]) for key in ((BF16, seed), (name, seed))]
        common = losses[0].keys() & losses[1].keys()
        if common:
            last = max(common)
            peaks = [_peak(curves[key], last) for key in ((BF16, seed), (name, seed))]
            lines.append((name, seed, last, _apart(*(loss[last] for loss in losses)), *peaks))
    header = ("variant", "seed", "to step", "loss there minus bf16's", "max abs logit in bf16", "max abs logit")
    return "Both runs of a seed, as far as both were evaluated:\n\n" + tables.markdown(header, lines) if lines else ""


def _peak(curve: Row, last: int) -> str:
    """The largest |logit| of the curve up to a step."""
    values = [value for step, value in curve["logits"] if step <= last]
    return "not measured" if not values else tables.shown(None if None in values else max(values), 3)


def _apart(bf16: float | None, other: float | None) -> str:
    return "not finite" if bf16 is None or other is None else f"{other - bf16:+.4f}"


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    names = [row["variant"] for row in data["rows"]]
    return drawing().hconcat(*figures.over_steps(data, names, width=340, height=230, each_seed=True))


EXPERIMENT = Experiment(
    name="precision",
    question="Does plain attention diverge because it is computed in bf16?",
    method=(
        "Plain attention as in `endurance`: the author's model, learning rate, warm-up of 2,000 steps and sequences of "
        "2,048 tokens, 16 per step. bf16 is autocast, as everywhere here; in the others weights, activations and "
        "attention are fp32, and products are rounded to TF32 or not at all. Runs with one seed see the same batches "
        "and start with the same weights. The rule was written before any of these runs; what it says where no run in "
        "bf16 diverges was added when none had."
    ),
    cost="H200: about 7 minutes per seed for bf16 and TF32, six at a time, 20 for fp32; CPU --quick: seconds",
    caption="Validation perplexity and largest |logit| over steps, with one line per seed.",
    claims={
        "precision": Claim(
            text="plain attention diverges in TF32 or fp32 too",
            paper="arXiv 2510.04212: rounding in bf16 is the cause",
            rule="holds if in TF32 and fp32 together as large a share of the runs diverges as in bf16, partly if any "
            "does; not if none does, undecided if bf16 may differ from that by chance (Fisher's exact test, 5 %), or "
            "if no run in bf16 does",
            judge=exact,
        ),
    },
    collect=collect,
    table=tables.losses,
    more=more,
    figure=figure,
    variants=variants,
    on_request=(FP32,),
    settings={"schedule.warmup": 2000, "telemetry.logits_every": 10},
    steps=12_000,
)
