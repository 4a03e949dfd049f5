"""How far the losses of variants are apart in the course of a training: on the validation text at its quarters, and on
the training text at its end. Where a text is read several times the two need not agree: what a variant gains on the
text that it has seen may not carry over to one that it has not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.engine import comparison, measures, tables
from experiments.engine.evidence import paired
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Data
from longshort.runs.reading import TAIL


def parts(variant: str, runs: Sequence[Outcome]) -> Row:
    """What `table` needs of a variant's runs, seed by seed; None where a run has no finite training loss at its end."""
    losses = [outcome.run.training_loss for outcome in runs]
    return {"training_losses": [loss if loss is not None and math.isfinite(loss) else None for loss in losses]}


def leads(data: Data, other: str) -> list[Row]:
    """Validation losses less those of `other` with the same seed, run by run, step by step, where both are finite."""
    losses = {(run["variant"], run["seed"]): dict(run["validation"]) for run in data.get("curves", ())}
    return [
        {"variant": name, "seed": seed, "step": step, "loss": loss - theirs}
        for (name, seed), own in losses.items()
        for step, loss in own.items()
        if loss is not None and (theirs := losses.get((other, seed), {}).get(step)) is not None
    ]


def table(data: Data, other: str, order: Sequence[str], what: str = "plan") -> str:
    """The differences to `other`, a line for each variant in this order; empty where there are none."""
    rows = measures.by_name(data)
    found = {name: gaps for name in order if name != other and (gaps := measures.gaps(data, other, name))}
    if not found:
        return ""
    steps = _quarters(
        [step for curve in data["curves"] if curve["variant"] == other for step, _ in curve["validation"]]
    )
    seen = "training_losses" in rows[other]
    lines = [
        (
            name,
            *(f"{gaps[step]:+.3f}" if step in gaps else "" for step in steps),
            *(_on_the_training_text(rows[name], rows[other]) if seen else ()),
        )
        for name, gaps in found.items()
    ]
    header = (what, *(f"validation, step {step:,}" for step in steps))
    last = ("training text", "95 % interval") if seen else ()
    words = (
        f"Losses minus those of {other} in the course of the training, means over the seeds of both; validation is of "
        "a part of the text"
    )
    words += f", training losses are means over the last {100 * TAIL:.0f} % of the steps in the log" if seen else ""
    return f"{words}:\n\n{tables.markdown((*header, *last), lines)}"


def _quarters(steps: Sequence[int]) -> list[int]:
    """The steps nearest to a quarter, a half, three quarters and all of the last one, each once.

    >>> _quarters([10, 20, 30, 40, 50, 60, 70, 80, 85])
    [20, 40, 60, 85]
    """
    nearest = {min(steps, key=lambda step: abs(step - part * max(steps) / 4)) for part in (1, 2, 3, 4)}
    return sorted(nearest)


def _on_the_training_text(mine: Row, theirs: Row) -> tuple[str, str]:
    """The difference and its interval; empty after other numbers of steps, or where a run has no loss."""
    found = paired(_training_losses(mine), _training_losses(theirs)) if comparison.equal_steps(mine, theirs) else None
    return ("", "") if found is None else (f"{found.mean:+.3f}", comparison.interval_of(found))


def _training_losses(row: Row) -> dict[int, float]:
    """By seed; empty if one of them is not known."""
    losses = row.get("training_losses", [None])
    return {} if None in losses else dict(zip(row["seeds"], losses, strict=True))
