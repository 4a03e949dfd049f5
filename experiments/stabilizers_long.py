"""Who is ahead after 6,000 steps, and not only after 2,250?

In `stabilizers`, layer-wise windows and all-local heads have one seed, and runs end while every loss still falls fast.
Here those that matter are trained for two and a half times as long with three seeds, and LS-attention also with as many
global heads as the layer-wise windows have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments import stabilizers
from experiments.engine import comparison, course, figures, measures, tables
from experiments.engine.evidence import FEWEST_SEEDS, Difference, paired, verdict_of
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from longshort.heads import HeadPlan
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS, local_window, with_plan

LS, LS_2, LAYERS = "ls", "ls-2", "layer-wise"
STABILIZERS = ("plain", "qk-norm-head", "qk-clip", "all-local")
NAMES = (LS, LS_2, LAYERS, *STABILIZERS)
EARLY, LATE = 2250, 6000
"""The evaluation that is nearest to the 2,400 steps of `stabilizers`, and the last."""


def variants(base: TrainConfig) -> Variants:
    """The strongest of `stabilizers`, and LS-attention with a second global head per layer."""
    second = HeadPlan.long_short(n_heads=base.model.n_heads, n_global=2, window=local_window(base))
    return {name: with_plan(base, second) if name == LS_2 else VARIANTS[name](base) for name in NAMES}


def collect(folder: Path) -> Data:
    return measures.data_of(measures.outcomes(folder), folder, NAMES, parts=course.parts)


def at(data: Data, step: int) -> dict[str, dict[int, float]]:
    """Validation losses after a step, by variant and seed; infinite from where a run's loss is not finite."""
    found: dict[str, dict[int, float]] = {}
    for curve in data["curves"]:
        until = [(place, loss) for place, loss in curve["validation"] if place <= step]
        if until and (until[-1][0] == step or until[-1][1] is None):
            loss = until[-1][1]
            found.setdefault(curve["variant"], {})[curve["seed"]] = math.inf if loss is None else loss
    return found


def against(data: Data, name: str, step: int) -> dict[str, Difference]:
    """The loss of each other variant less that of this one after a step, where seeds are common."""
    losses = at(data, step)
    own = losses.get(name, {})
    pairs = {other: paired(losses.get(other, {}), own) for other in NAMES if other != name}
    return {other: pair for other, pair in pairs.items() if pair is not None}


def more(data: Data) -> str:
    early, late = (against(data, LS, step) for step in (EARLY, LATE))
    lines = [
        (name, *(cell for found in (early, late) for cell in _cells(found.get(name)))) for name in NAMES if name in late
    ]
    header = ("minus LS's", *(f"{what} {step:,}" for step in (EARLY, LATE) for what in ("nats at", "95 % interval at")))
    late_and_early = (
        f"Validation loss less that of LS-attention with one global head:\n\n{tables.markdown(header, lines)}"
    )
    return "\n\n".join(filter(None, (late_and_early, course.table(data, "plain", NAMES, what="variant"))))


def _cells(found: Difference | None) -> tuple[str, str]:
    return ("", "") if found is None else (f"{found.mean:+.3f}", comparison.interval_of(found))


def ahead(data: Data, *, name: str, others: tuple[str, ...]) -> Finding | None:
    """Is the first lower than each of the others at the end?"""
    found = {other: pair for other, pair in against(data, name, LATE).items() if other in others}
    if not found:
        return None
    cases = [pair.is_above() for pair in found.values()]
    ours = f"nats above {name}: {_words(found)}"
    return Finding(ours=ours, verdict=verdict_of(cases, of=len(others)), seeds=_seeds(found))


def keeps(data: Data) -> Finding | None:
    """Is what is decided early decided in the same way at the end?"""
    late = against(data, LS, LATE)
    early = {name: pair for name, pair in against(data, LS, EARLY).items() if pair.sign() and name in late}
    if not early or len(late) < len(NAMES) - 1:
        return None
    cases = [_same(pair, late[name]) for name, pair in early.items()]
    decided = {name: late[name] for name in early}
    ours = f"nats above {LS}, decided after {EARLY:,}: {_words(early)}; after {LATE:,}: {_words(decided)}"
    return Finding(ours=ours, verdict=verdict_of(cases), seeds=_seeds(early) + _seeds(late))


def _same(early: Difference, late: Difference) -> bool | None:
    return None if not late.sign() else late.sign() == early.sign()


def _words(found: Mapping[str, Difference]) -> str:
    return ", ".join(f"{name} ({comparison.NATS.whole(pair)})" for name, pair in found.items())


def _seeds(found: Mapping[str, Difference]) -> tuple[int, ...]:
    return tuple(pair.seeds for pair in found.values())


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    return drawing().hconcat(*figures.over_steps(data, NAMES, width=340, height=260))


_RULE = f"the whole paired 95 % interval over at least {FEWEST_SEEDS} seeds, after {LATE:,} steps"
EXPERIMENT = Experiment(
    name="stabilizers-long",
    question="Which stabilizer is ahead after 6,000 steps, and not only after 2,250?",
    method=(
        "The runs of `stabilizers`, that is the author's model on 16 sequences of 2,048 tokens per step at 5 times the "
        "author's learning rate, constant after the warm-up, for 6,000 steps: plain attention, with QK-norm per head, "
        "with QK-clip, with all heads local, with windows by whole layers (12 of 36 heads global), and LS-attention "
        "with one and with two global heads in each of six layers (6 and 12 of 36). The claims and their rules were "
        "written before any of these runs."
    ),
    cost="H200: about 7 minutes per seed, seven at a time under MPS; CPU --quick: a minute",
    caption="Validation perplexity and largest |logit| over the steps; bands are ranges over seeds.",
    claims={
        "ahead": Claim(
            text="after 6,000 steps LS-attention is ahead of plain attention, QK-norm, QK-clip and all local heads",
            paper="about 38 against about 112 for QK-norm, and about 42 for all local heads (perplexity)",
            rule=f"final loss lower by {_RULE}: holds if against all four, partly if against some",
            judge=partial(ahead, name=LS, others=STABILIZERS),
        ),
        "layers": Claim(
            text="with as many global heads, LS-attention is ahead of windows by whole layers",
            paper="does not compare with them",
            rule=f"two global heads in each layer against two layers of six, final loss lower by {_RULE}",
            judge=partial(ahead, name=LS_2, others=(LAYERS,)),
        ),
        "two": Claim(
            text="a second global head in each layer lowers the loss",
            paper="argues for few global heads",
            rule=f"two against one, final loss lower by {_RULE}",
            judge=partial(ahead, name=LS_2, others=(LS,)),
        ),
        "keeps": Claim(
            text="what 2,250 steps say of LS-attention against the others, 6,000 say too",
            paper="none; `stabilizers` ends after 2,400",
            rule=f"the differences to LS-attention with one global head whose paired 95 % interval excludes 0 after "
            f"{EARLY:,} steps: holds if after {LATE:,} all of them have the same sign and exclude 0, partly if some; "
            "otherwise it does not hold, or is undecided if one includes 0",
            judge=keeps,
        ),
    },
    collect=collect,
    table=tables.losses,
    more=more,
    figure=figure,
    variants=variants,
    settings=stabilizers.EXPERIMENT.settings,
    steps=LATE,
)
