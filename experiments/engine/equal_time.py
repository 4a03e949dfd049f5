"""What arms reach in equal GPU time: steps times the time of a step's kernels, measured alone on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.engine import measures

TARGETS = (150.0, 100.0, 80.0, 60.0, 50.0, 45.0, 40.0)
"""Perplexities whose time is measured, where an arm reaches them."""


def perplexity_at(runs: Sequence[measures.Outcome], step: float) -> float | None:
    """Perplexity, of the mean loss over seeds, at the last evaluation up to a step; None before the first, where a
    loss is not finite, and where a run did not come so far.
    """
    step += 1e-9 * step  # a step that is a time divided by a step's time may miss its own number
    losses = [measures.loss_by(outcome.run, step) for outcome in runs]
    known = [loss for loss in losses if loss is not None]
    whole = known and len(known) == len(losses) and all(outcome.run.last_step >= math.floor(step) for outcome in runs)
    return measures.perplexity(sum(known) / len(known)) if whole else None


def seconds_to(runs: Sequence[measures.Outcome], perplexity: float, step_seconds: float | None) -> float | None:
    """Mean over seeds; None where a seed does not get there or a step was not timed."""
    steps = [measures.steps_to(outcome.run, math.log(perplexity)) for outcome in runs]
    known = [step for step in steps if step is not None]
    if step_seconds is None or len(known) < len(steps):
        return None
    return step_seconds * sum(known) / len(known)


def table(rows: Sequence[dict[str, Any]], budget: float | None) -> str:
    if budget is None:
        return "Time: not measured yet (`python -m experiments stabilizers --time-steps`).\n"
    shown = measures.shown
    return (
        f"Equal GPU time: {budget:.0f} s of steps; a step is the time of its kernels. Seconds to a perplexity:\n\n"
    ) + measures.markdown(
        ("arm", "ms a step", "perplexity at equal time", *(f"to {target:g}" for target in TARGETS)),
        [
            (
                row["arm"],
                *(("",) * 2 if row["step_seconds"] is None else (shown(1e3 * row["step_seconds"], 3), _time_cell(row))),
                *("" if s is None else f"{s:.0f}" for s in row["seconds_to"].values()),
            )
            for row in rows
        ],
    )


def _time_cell(row: dict[str, Any]) -> str:
    value = row["perplexity_at_equal_time"]
    return "no finite evaluation then" if value is None else measures.shown(value)
