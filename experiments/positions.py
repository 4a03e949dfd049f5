"""Does the effect hold with other positional encodings?

The paper's model has learned positions; its reviewers asked whether the effect depends on them. Encodings that bring
locality of their own (rotary, ALiBi) may leave less for local heads to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import every, verdict_of
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

ENCODINGS = ("learned", "rotary", "alibi", "sinusoidal", "none")
KINDS = ("plain", "ls")
NAMES = tuple(f"{kind}-{encoding}" for encoding in ENCODINGS for kind in KINDS)


def variants(base: TrainConfig) -> Variants:
    """Plain and LS-attention with each encoding; learned is the paper's."""
    return {
        f"{kind}-{encoding}": VARIANTS[kind](replace(base, model=replace(base.model, positions=encoding)))
        for encoding in ENCODINGS
        for kind in KINDS
    }


def collect(folder: Path) -> Data:
    return measures.data_of(measures.outcomes(folder), folder, NAMES)


def is_better(plain: Row, ls: Row) -> bool | None:
    """Is LS lower in final loss and in largest |logit|? A value that is not finite counts as larger than any other."""
    return every([comparison.is_lower(ls, plain), comparison.has_lower_peak(ls, plain)])


def independent(data: Data) -> Finding | None:
    rows = measures.by_name(data)
    pairs = {e: (rows.get(f"plain-{e}"), rows.get(f"ls-{e}")) for e in ENCODINGS if e != "learned"}
    whole = {
        encoding: (plain, ls)
        for encoding, (plain, ls) in pairs.items()
        if plain is not None and ls is not None and comparison.equal_steps(plain, ls)
    }
    better = {encoding: is_better(plain, ls) for encoding, (plain, ls) in whole.items()}
    if not better:
        return None
    seeds = comparison.seeds_of(*(row for rows in whole.values() for row in rows))
    shown = {encoding: "no positions" if encoding == "none" else encoding for encoding in better}
    kinds = {"loss and logits lower with": True, "not with": False, "undecided with": None}
    named = {words: [shown[e] for e, case in better.items() if case is kind] for words, kind in kinds.items()}
    ours = "; ".join(f"{words} {', '.join(names)}" for words, names in named.items() if names)
    return Finding(ours=ours, verdict=verdict_of(better.values(), of=len(ENCODINGS) - 1), seeds=seeds)


def figure(data: Data, encodings: Sequence[str] = ENCODINGS, kinds: Sequence[str] = KINDS) -> Any:
    """Largest |logit| above and perplexity below, a column for each encoding."""
    from longshort.report.charts import drawing

    alt = drawing()
    every_loss, every_logit = figures.points(data["curves"])
    tops: list[Any] = []
    bottoms: list[Any] = []
    for encoding in encodings:
        curves = [c for c in data["curves"] if c["variant"].endswith(f"-{encoding}")]
        if not curves:
            continue
        common: dict[str, Any] = {
            "x": "step",
            "x_title": "step",
            "names": kinds,
            "log": True,
            "width": 158,
            "height": 160,
        }
        losses, logits = figures.points(curves, series=lambda variant: variant.rpartition("-")[0])
        first = not tops
        top: dict[str, Any] = {"y": "logit", "y_title": "max |logit|" if first else None, "beside": every_logit}
        tops.append(figures.lines(logits, title=encoding, **top, **common))
        named: dict[str, Any] = {"y": "perplexity", "y_title": "validation perplexity" if first else None}
        bottoms.append(figures.lines(losses, beside=every_loss, **named, **common))
    return alt.vconcat(*(alt.hconcat(*panels).resolve_scale(x="shared", y="shared") for panels in (tops, bottoms)))


EXPERIMENT = Experiment(
    name="positions",
    question="Does the effect hold with other positional encodings?",
    method=(
        "The author's model on 16 sequences of 2,048 tokens per step, at 5 times the author's learning rate, in short "
        "runs: the paper's learned positions, and rotary, ALiBi, sinusoidal and no positions."
    ),
    cost="H200: about 5 minutes for one seed, ten at a time; CPU --quick: a minute",
    caption=(
        "Largest |logit| (top) and validation perplexity (bottom) over steps, with one column per encoding; one seed."
    ),
    claims={
        "positions": Claim(
            text="the effect does not depend on learned positions",
            paper="reviewers missed it",
            rule="LS lower than plain in final loss and in largest |logit| (the whole paired interval of each): holds "
            "if with every other encoding, partly if with some",
            judge=independent,
        ),
    },
    collect=collect,
    table=tables.losses,
    figure=figure,
    variants=variants,
    settings={"optimizer.lr": 3e-3},
    steps=3000,
)
