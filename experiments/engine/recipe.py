"""What an experiment is: its runs or measurement, the claims it tests, and how its results are summarised and drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshort.train import TrainConfig

HOLDS, PARTLY, FAILS, NOT_RUN = "holds", "holds partly", "does not hold", "not run yet"

Arms = dict[str, TrainConfig]
"""The configurations of an experiment by the name of the arm; seed and folder are set later."""


def verdict_of(cases: Collection[bool], *, of: int | None = None) -> str:
    """Of a claim that was tested in several cases: it holds in all, in some, or in none.

    Where fewer have run than the rule asks for (`of`), it may already hold partly, and is open otherwise.

    >>> verdict_of([True, False]), verdict_of([True, True], of=3)
    ('holds partly', 'not run yet')
    """
    if any(cases) and not all(cases):
        return PARTLY
    if not cases or len(cases) < (of or 0):
        return NOT_RUN
    return HOLDS if all(cases) else FAILS


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something the paper says, or that follows from it, and that numbers can decide."""

    text: str
    paper: str
    """What the paper reports."""
    rule: str
    """When it holds, and when partly: written before the runs, applied by the recipe's `summarise`."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came out for one claim."""

    ours: str
    verdict: str
    """HOLDS, PARTLY, FAILS or NOT_RUN."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The results of an experiment, without a drawing."""

    data: dict[str, Any]
    """Every number, ready for JSON; the figure is drawn from it alone."""
    table: str
    """Markdown."""
    sentences: tuple[str, ...]
    """What the numbers show, no more."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """By the key of the claim; a claim that the data do not decide is absent."""

    @property
    def is_quick(self) -> bool:
        """Are there results of --quick among these, which decide nothing?"""
        return any("--quick" in entry["command"].split() for entry in self.data["provenance"]["commands"])


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person may choose about a call of `python -m experiments`."""

    out: Path
    data: Path | None = None
    """Token folder; a quick version takes the default data without it. For recipes on tasks, where their files lie."""
    steps: int | None = None
    """The recipe's own if None."""
    seeds: tuple[int, ...] = (0,)
    arms: tuple[str, ...] | None = None
    """Names or shell patterns; all if None."""
    device: str = "auto"
    parallel: int = 1
    """Runs at a time."""
    minutes: float | None = None
    """Stop cleanly after so long; the same command goes on."""
    quick: bool = False
    """The CPU-sized version."""
    overrides: tuple[str, ...] = ()
    """`section.key=value`, applied before the arms' own changes; one that all arms undo is refused."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One experiment: either trainings (`arms`) or a measurement of another kind (`measure`)."""

    name: str
    question: str
    """What it asks, in one line."""
    method: str
    """How it is done and where that differs from the paper, for the page of results."""
    cost: str
    """About what it takes, on an H200 and on a CPU."""
    claims: Mapping[str, Claim]
    summarise: Callable[[Path], Summary]
    """From the folder of the runs, or what was unpacked from a pack of it."""
    figure: Callable[[dict[str, Any]], Any]
    """An Altair chart from `Summary.data`."""
    arms: Callable[[TrainConfig], Arms] | None = None
    """Every arm of the sweep, from the base configuration; pure."""
    on_request: tuple[str, ...] = ()
    """Arms that cost far more than the others: a pattern of `--arms` takes them only where it takes no others."""
    base: Mapping[str, Mapping[str, Any]] | None = None
    """Sections of the base configuration in place of the author's, with a task: the runs then need no token folder."""
    quick_base: Mapping[str, Mapping[str, Any]] | None = None
    """The same for `--quick`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the base configuration, as `section.key: value`."""
    steps: int = 0
    """Optimizer steps of each run."""
    measure: Callable[[Options, Callable[[str], None]], None] | None = None
    """Measure and write into `options.out`, telling the second argument how far it is."""
