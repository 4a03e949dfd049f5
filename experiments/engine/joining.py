"""Adding runs to published data whose own runs are gone: their rows hold what was measured seed by seed.

Lists hold one value per seed and are joined, in dictionaries too, unless only one side has them; what is a mean, a sum
or a maximum over seeds is computed again; everything else must be the same in both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from experiments.engine.comparison import WHOLE_TEXT, equal_steps
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
    for key in new.keys() - {"name", "provenance", "rows", "curves"}:
        if new[key] != published.get(key):
            raise RunError(
                f"--add cannot join {key}, which is not kept seed by seed; publish all runs together instead"
            )
    _check_texts(published, new)
    made = published["provenance"] | {
        key: _JOINS[type(value)](published["provenance"].get(key, value), value)
        for key, value in new["provenance"].items()
    }
    return new | {"provenance": made, "rows": list(rows.values())} | _curves(published, new)


def _check_texts(published: Data, new: Data) -> None:
    """Variants are compared seed by seed, so a seed must not stand for two texts; one that is not known is another."""
    theirs, own = (data["provenance"].get("vocabularies_by_seed", {}) for data in (published, new))
    for seed in sorted({seed for row in published["rows"] for seed in row["seeds"]}):
        text = own.get(str(seed))
        if text is not None and text != (other := theirs.get(str(seed))):
            raise RunError(
                f"seed {seed} is published of another text (vocabulary {other or 'unknown'}, got {text}), and variants "
                "are compared seed by seed; train with seeds that are not published, with what these variants are "
                "compared with among them"
            )


def _curves(published: Data, new: Data) -> Data:
    """Run by run; a run that is in both was trained, but not known by its seed in a row: it was not asked."""
    if "curves" not in new:
        return {}
    theirs, own = ({(c["variant"], c["seed"]) for c in data.get("curves", ())} for data in (published, new))
    if both := sorted(theirs & own):
        raise RunError(f"{both[0][0]}: seed {both[0][1]} is both published and in the folder; remove it from one")
    curves = [*published.get("curves", ()), *new["curves"]]
    order = list(dict.fromkeys(curve["variant"] for curve in curves))
    return {"curves": sorted(curves, key=lambda curve: (order.index(curve["variant"]), curve["seed"]))}


def _one_row(published: Row, new: Row) -> Row:
    variant = new["variant"]
    if both := sorted(set(new["seeds"]) & set(published["seeds"])):
        raise RunError(f"{variant}: seeds {both} are both published and in the folder; remove them from one")
    if not equal_steps(published, new):
        raise RunError(
            f"{variant}: runs must have equally many steps, got {sorted(set(new['steps']))} in the folder and "
            f"{sorted(set(published['steps']))} published"
        )
    if (WHOLE_TEXT in published) != (WHOLE_TEXT in new):
        raise RunError(
            f"{variant}: losses must be of the whole validation text in all runs or in none; run the same command "
            "again to measure what is missing"
        )
    first, second = sorted((published, new), key=lambda row: row["seeds"])
    keys = [key for key in {**published, **new} if _is_whole(key, first, second)]
    whole: Row = {key: None if key in _DERIVED else _both(variant, key, first, second) for key in keys}
    if "accuracies" in whole:
        whole["accuracy"] = statistics.fmean(whole["accuracies"]) if whole["accuracies"] else None
    if "final_losses" in whole:
        losses = whole["final_losses"]
        whole["spread"] = None if None in losses else max(losses) - min(losses)
        whole["final_perplexity"] = perplexity(whole["final_loss"])
    return _by_seed(whole)


def _by_seed(row: Row) -> Row:
    """The row with its seeds in order: those of one side may lie between those of the other."""
    asked = row.get("seeds_of_shares_yarn", {})
    found = {key: _ordered(value, row["seeds"]) for key, value in row.items() if key not in _HAVE_SEEDS}
    found |= {key: _ordered(row[key], row[key]["seeds"]) for key in ("beyond", "beyond_yarn") if key in row}
    if asked:
        found["seeds_of_shares_yarn"] = {length: sorted(seeds) for length, seeds in asked.items()}
        found["shares_yarn"] = {
            kind: {length: _ordered(shares, asked[length]) for length, shares in by_length.items()}
            for kind, by_length in row["shares_yarn"].items()
        }
    return {key: found[key] for key in row}


def _ordered(value: Any, seeds: Sequence[int]) -> Any:
    """
    >>> _ordered({"a": [0.1, 0.3, 0.2]}, [0, 2, 1])
    {'a': [0.1, 0.2, 0.3]}
    """
    if isinstance(value, dict):
        return {key: _ordered(part, seeds) for key, part in value.items()}
    if not isinstance(value, list) or len(value) != len(seeds):  # steps may be of more runs than were asked
        return value
    return [part for _, part in sorted(zip(seeds, value, strict=True), key=lambda pair: pair[0])]


def _is_whole(key: str, first: Row, second: Row) -> bool:
    """Is this known of all seeds, or does it say itself of which?"""
    of_seeds = isinstance((first | second)[key], list | dict)
    return not of_seeds or key in _HAVE_SEEDS or (key in first and key in second)


def _both(variant: str, key: str, first: Row, second: Row) -> Any:
    """What the row of both has under this key."""
    if key in _MEANS:
        return _mean((first, second), key)
    values = [row[key] for row in (first, second) if key in row]
    if key in _SUMS:
        return sum(values)
    if key == "max_logit":
        return max((value for value in values if value is not None), default=None)
    if key == "best_perplexity":  # of the mean of the losses
        logs = [{"seeds": row["seeds"], key: row.get(key) and math.log(row[key])} for row in (first, second)]
        return perplexity(_mean(logs, key))
    if all(isinstance(value, list | dict) for value in values):
        return _all_seeds(*values) if len(values) == 2 else values[0]
    if len(values) == 1 or values[0] == values[1]:
        return values[0]
    raise RunError(f"{variant}: {key} must be the same in all runs, got {values[0]} and {values[1]}")


def _all_seeds(first: Any, second: Any) -> Any:
    """Lists one after the other; dictionaries key by key, those of only one as they are."""
    if isinstance(first, list):
        return [*first, *second]
    return {
        key: _all_seeds(first[key], second[key]) if key in first and key in second else (first | second)[key]
        for key in {**first, **second}
    }


def _mean(rows: Sequence[Row], key: str) -> float | None:
    """The mean of values that are themselves means over the seeds of each row."""
    measured = [row for row in rows if row.get(key) is not None]
    if key in _LOST_WITH_ONE and len(measured) < len(rows):
        return None
    weights = [len(row["seeds"]) for row in measured]
    return statistics.fmean([row[key] for row in measured], weights) if measured else None


_MEANS = {"exact", "validation_loss", "final_loss"}
_LOST_WITH_ONE = {"final_loss", "best_perplexity"}
"""Means that are None where a single run has no finite value."""
_SUMS = {"diverged", "spikes", "logits_lost"}
_DERIVED = {"accuracy", "spread", "final_perplexity"}
"""From the values of all seeds."""
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
    dict: lambda theirs, own: theirs | own,
}
