"""Adding runs to published data whose own runs are gone: their rows hold what was measured seed by seed.

Lists hold one value per seed and are joined, in dictionaries too, unless only one side has them; what is a mean, a sum
or a maximum over seeds is computed again; everything else must be the same in both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments.engine.measures import Row, perplexity
from experiments.engine.records import Data
from longshort.runs import RunError


def joined(published: Data, new: Data) -> Data:
    """The data of both; a variant that is in both gets one row with all its seeds. New variants come last."""
    rows: dict[str, Row] = {}
    for row in (*published["rows"], *new["rows"]):
        if not isinstance(row.get("seeds"), list) or not {"accuracies", "final_losses", "shares"} & row.keys():
            raise RunError(
                "--add works only where rows hold losses, accuracies or answers seed by seed; publish all runs "
                "together instead"
            )
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
    keys = [key for key in {**theirs, **own} if _is_whole(key, theirs, own)]
    whole: Row = {key: None if key in _DERIVED else _both(own["variant"], key, theirs, own) for key in keys}
    if "final_losses" in whole:
        losses = whole["final_losses"]
        whole["spread"] = None if None in losses else max(losses) - min(losses)
        whole["final_perplexity"] = perplexity(whole["final_loss"])
    return whole


def _is_whole(key: str, theirs: Row, own: Row) -> bool:
    """Is this known of all seeds, or does it say itself of which?"""
    of_seeds = isinstance((theirs | own)[key], list | dict)
    return not of_seeds or key in _HAVE_SEEDS or (key in theirs and key in own)


def _both(variant: str, key: str, theirs: Row, own: Row) -> Any:
    """What the row of both has under this key."""
    if key in _MEANS:
        return _mean((theirs, own), key)
    values = [row[key] for row in (theirs, own) if key in row]
    if key in _SUMS:
        return sum(values)
    if key == "max_logit":
        return max((value for value in values if value is not None), default=None)
    if key == "best_perplexity":  # of the mean of the losses
        logs = [{"seeds": row["seeds"], key: row.get(key) and math.log(row[key])} for row in (theirs, own)]
        return perplexity(_mean(logs, key))
    if key in _OF_THE_FIRST:
        return values[0]
    if all(isinstance(value, list | dict) for value in values):
        return _all_seeds(*values) if len(values) == 2 else values[0]
    if len(values) == 1 or values[0] == values[1]:
        return values[0]
    raise RunError(f"{variant}: {key} must be the same in the folder as published, got {values[1]} and {values[0]}")


def _all_seeds(theirs: Any, own: Any) -> Any:
    """Lists one after the other; dictionaries key by key, those of only one as they are."""
    if isinstance(theirs, list):
        return [*theirs, *own]
    return {
        key: _all_seeds(theirs[key], own[key]) if key in theirs and key in own else (theirs | own)[key]
        for key in {**theirs, **own}
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    """The mean of values that are themselves means over the seeds of each row."""
    measured = [row for row in rows if row.get(key) is not None]
    if key in _LOST_WITH_ONE and len(measured) < len(rows):
        return None
    weights = [len(row["seeds"]) for row in measured]
    return statistics.fmean([row[key] for row in measured], weights) if measured else None


_MEANS = {"accuracy", "exact", "validation_loss", "final_loss"}
_LOST_WITH_ONE = {"final_loss", "best_perplexity"}
"""Means that are None where a single run has no finite value."""
_SUMS = {"diverged", "spikes", "logits_lost"}
_DERIVED = {"spread", "final_perplexity"}
"""From the losses of all seeds."""
_OF_THE_FIRST = {"shared_tokens_per_second"}
"""Of the first run, as when all are collected together."""
_HAVE_SEEDS = {"beyond", "beyond_yarn", "shares_yarn", "seeds_of_shares_yarn"}
"""With seeds of their own, since not all runs were asked for them."""


def _union(theirs: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Both without repetition; sorted, except commands and versions."""
    found = [*theirs, *(entry for entry in own if entry not in theirs)]
    return found if any(isinstance(entry, dict) for entry in found) else sorted(found)


_JOINS: dict[type, Callable[[Any, Any], Any]] = {
    str: min,  # when the first run started
    float: lambda theirs, own: round(theirs + own, 1),
    list: _union,
}
