"""Adding runs to published data whose own runs are gone: their rows hold every seed and its accuracy, which is enough.

This works for experiments on tasks. What is derived from rows is computed when it is shown, so it needs no update here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments.engine.measures import Row
from experiments.engine.records import Data
from longshort.runs import RunError


def joined(published: Data, new: Data) -> Data:
    """The data of both; a variant that is in both gets one row with all its seeds. New variants come last."""
    rows: dict[str, Row] = {}
    for row in (*published["rows"], *new["rows"]):
        if "accuracies" not in row:
            raise RunError("--add works only where results are accuracies of tasks; publish all runs together instead")
        name = row["variant"]
        rows[name] = _one_row(rows[name], row) if name in rows else row
    made = {
        key: _JOINS[type(value)](published["provenance"].get(key, value), value)
        for key, value in new["provenance"].items()
    }
    curves = {"curves": [*published["curves"], *new["curves"]]} if "curves" in new else {}
    return new | {"provenance": made, "rows": list(rows.values())} | curves


def _one_row(theirs: Row, own: Row) -> Row:
    if both := sorted(set(own["seeds"]) & set(theirs["seeds"])):
        raise RunError(f"{own['variant']}: seeds {both} are both published and in the folder; remove them from one")
    if {*own["steps"]} != {*theirs["steps"]}:
        raise RunError(
            f"{own['variant']}: runs must have equally many steps, got {sorted(set(own['steps']))} in the folder and "
            f"{sorted(set(theirs['steps']))} published"
        )
    parts = (theirs, own)
    accuracies = [share for row in parts for share in row["accuracies"]]
    return own | {
        "seeds": [seed for row in parts for seed in row["seeds"]],
        "steps": [step for row in parts for step in row["steps"]],
        "accuracy": statistics.fmean(accuracies) if accuracies else None,
        "accuracies": accuracies,
        "exact": _mean(parts, "exact"),
        "validation_loss": _mean(parts, "validation_loss"),
        "max_logit": max((row["max_logit"] for row in parts if row["max_logit"] is not None), default=None),
        "diverged": sum(row["diverged"] for row in parts),
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    """The mean of values that are themselves means over the seeds of each row."""
    measured = [row for row in rows if row[key] is not None]
    weights = [len(row["seeds"]) for row in measured]
    return statistics.fmean([row[key] for row in measured], weights) if measured else None


def _union(theirs: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Both without repetition; sorted, except commands and versions."""
    found = [*theirs, *(entry for entry in own if entry not in theirs)]
    return found if any(isinstance(entry, dict) for entry in found) else sorted(found)


_JOINS: dict[type, Callable[[Any, Any], Any]] = {
    str: min,  # when the first run started
    float: lambda theirs, own: round(theirs + own, 1),
    list: _union,
}
