"""A run that is killed again and again, and restarted each time, ends bit for bit as one that was never killed.

Most kills come half-way through a random file operation: in a save, in the log, in the removal of old checkpoints. The
others come from outside, at a random time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import subject
from .children import Outcome, longshort
from .faults import KILL, Fault

KILLS_PER_RUN = 10
_MOMENTS = {"s": 45, "l": 12, "p": 18, "time": 25}
"""Percentage of kills aimed at each moment."""
_REACH = {"s": 40, "l": 12, "p": 12}
"""The kill comes within this many operations of its kind, about those of two or three saves."""
NAMES = {
    "s": "while saving",
    "l": "while writing the log",
    "p": "while removing old checkpoints",
    "time": "at any time",
}


def setting(number: int) -> str:
    """The setting of a run; the settings take turns."""
    return list(subject.SETTINGS)[number % len(subject.SETTINGS)]


def references(base: Path, work: Path, runs: Iterable[int]) -> dict[str, Path]:
    """The undisturbed run of each setting used by these runs."""
    made = {}
    for name in {setting(number) for number in runs}:
        made[name] = subject.with_run(subject.copy(base, work / f"undisturbed-{name.replace(' ', '-')}"), name)
        subject.must_work(longshort(subject.TRAIN, made[name]))
    return made


def one_run(
    number: int, *, base: Path, references: dict[str, Path], work: Path, seed: int, count: int = KILLS_PER_RUN
) -> dict[str, Any]:
    """Kill one run `count` times and compare its end; if it finishes earlier, it is compared and another begins."""
    draw = random.Random(f"{seed}/kill/{number}")
    name = setting(number)
    folder = subject.with_run(subject.copy(base, work / f"kill-{number}"), name)
    row: dict[str, Any] = {"case": f"kill:{number}", "setting": name, "kills": {}, "problem": ""}
    hits: Counter[str] = Counter()
    while sum(hits.values()) < count:
        moment = draw.choices(list(_MOMENTS), list(_MOMENTS.values()))[0]
        outcome = _disturbed(folder, moment, draw)
        if outcome.killed:
            hits[NAMES[outcome.hit[:1] or "time"]] += 1
        elif outcome.code or outcome.crashed:
            row["problem"] = f"restarted after {sum(hits.values())} kills: {outcome.said}"
            break
        else:  # finished before the kill: start another run with the same setting
            row["problem"] = subject.difference(folder / subject.RUN, references[name] / subject.RUN)
            if row["problem"]:
                break
            subject.with_run(subject.copy(base, folder), name)
    row["kills"] = dict(hits)
    if not row["problem"]:
        outcome = longshort(subject.TRAIN, folder)
        problem = outcome.said if outcome.code or outcome.crashed else ""
        row["problem"] = problem or subject.difference(folder / subject.RUN, references[name] / subject.RUN)
    return row


def _disturbed(folder: Path, moment: str, draw: random.Random) -> Outcome:
    if moment == "time":
        return longshort(subject.TRAIN, folder, kill_after=draw.uniform(0.05, 1.5))
    fault = Fault(KILL, draw.randint(1, _REACH[moment]), moment)
    return longshort(subject.TRAIN, folder, fault=fault)
