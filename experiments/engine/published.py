"""Going on from published results of which only the page's JSON is left: its runs count beside those of the folder.

That works for recipes on tasks, whose rows name every run's seed and accuracy.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longshort.files import write_atomically
from longshort.runs import RunError

FILE = "published.json"
"""What `--unpack NAME.json` leaves in the folder of the runs."""


def take(path: Path, folder: Path, name: str) -> Path:
    """Put the JSON of the page of the recipe `name` beside the runs of `folder`."""
    text = path.read_text(encoding="utf-8")
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged, or no JSON: {error}") from None
    found = document.get("name") if isinstance(document, dict) else None
    if found != name:
        raise ValueError(f"{path} holds results of {found!r}; expected those of {name!r}")
    if not document.get("rows") or any("accuracies" not in row for row in document["rows"]):
        raise ValueError(f"{path}: results can be gone on with from JSON where they are accuracies; unpack a pack here")
    return write_atomically(folder / FILE, text)


def earlier(folder: Path) -> dict[str, Any]:
    """What was taken into the folder; nothing if nothing was."""
    path = folder / FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def with_earlier_rows(own: Mapping[str, dict[str, Any]], folder: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the folder's arms and of the published ones; an arm that has both gets one row of all its seeds."""
    theirs = {row["arm"]: row for row in earlier(folder).get("rows", [])}
    names = dict.fromkeys((*order, *own, *theirs))
    return [_joined(own.get(name), theirs.get(name)) for name in names if name in own or name in theirs]


def _joined(own: dict[str, Any] | None, theirs: dict[str, Any] | None) -> dict[str, Any]:
    if own is None or theirs is None:
        return own or theirs or {}
    if both := sorted(set(own["seeds"]) & set(theirs["seeds"])):
        raise RunError(f"{own['arm']}: seeds {both} are in the folder and in {FILE}; expected each in one of the two")
    if {*own["steps"]} != {*theirs["steps"]}:
        raise RunError(
            f"{own['arm']}: runs of {sorted(set(own['steps']))} steps in the folder, of {sorted(set(theirs['steps']))} "
            f"in {FILE}; expected equally many"
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


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Of what is itself a mean over the seeds of each row."""
    measured = [row for row in rows if row[key] is not None]
    weights = [len(row["seeds"]) for row in measured]
    return statistics.fmean([row[key] for row in measured], weights) if measured else None


def _union(theirs: Sequence[Any], own: Sequence[Any]) -> list[Any]:
    """Sorted, but for commands and versions."""
    found = [*theirs, *(entry for entry in own if entry not in theirs)]
    return found if any(isinstance(entry, dict) for entry in found) else sorted(found)


_JOINS: dict[type, Callable[[Any, Any], Any]] = {
    str: min,  # when the first run started
    float: lambda theirs, own: round(theirs + own, 1),
    list: _union,
}


def with_earlier_provenance(own: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Where the numbers come from, the published ones included."""
    theirs = earlier(folder).get("provenance", {})
    return {key: _JOINS[type(value)](theirs[key], value) if key in theirs else value for key, value in own.items()}


def with_earlier_curves(own: Sequence[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The curves of the published runs and of the folder's."""
    return [*earlier(folder).get("curves", []), *own]
