"""Do other remedies train as long as LS-attention without divergence?

The recipe of `endurance`, in which plain attention diverges with some seeds by step 10,000: windows by whole layers,
and queries and keys that are normalised.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments import endurance
from experiments.engine import comparison, measures, tables
from experiments.engine.evidence import verdict_of
from experiments.engine.records import Claim, Data, Finding, Variants
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

KINDS = ("layer-wise", "qk-norm-head")


def variants(base: TrainConfig) -> Variants:
    """One run of each."""
    return {kind: VARIANTS[kind](base) for kind in KINDS}


def stays(data: Data) -> Finding | None:
    """Too few steps decide nothing, but for a run that diverges."""
    rows = measures.by_name(data)
    if set(KINDS) - rows.keys():
        return None
    cases, words = [], []
    for row in (rows[kind] for kind in KINDS):
        far = min(row["steps"]) >= endurance.PAPER_DIVERGES
        cases.append(False if row["diverged"] else True if far else None)
        words.append(f"{row['variant']}: {row['diverged']} of {len(row['seeds'])} by step {max(row['steps']):,}")
    seeds = comparison.seeds_of(*(rows[kind] for kind in KINDS))
    return Finding(ours=f"diverged: {'; '.join(words)}", verdict=verdict_of(cases), seeds=seeds)


EXPERIMENT = replace(
    endurance.EXPERIMENT,
    name="endurance-others",
    question="Do other remedies train as long as LS-attention without divergence?",
    method=(
        "As `endurance`: the author's model, learning rate, warm-up of 2,000 steps and sequences of 2,048 tokens, 16 "
        "sequences per step instead of 256; 25,000 steps."
    ),
    cost="H200: about 6 minutes per seed, four runs at a time under MPS; CPU --quick: seconds",
    claims={
        "stays": Claim(
            text="windows by whole layers, and QK-norm, do not diverge in long runs",
            paper="none; published models train with both",
            rule=f"holds if no run of either diverges in at least {endurance.PAPER_DIVERGES:,} steps, partly if this "
            "is so for one of them",
            judge=stays,
        ),
    },
    collect=partial(endurance.collect, kinds=KINDS),
    table=tables.losses,
    variants=variants,
    steps=25_000,
)
