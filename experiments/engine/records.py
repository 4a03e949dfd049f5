"""What an experiment is: its question, its runs or its measurement, the claims it decides, and how its data are shown.

Everything shown is a pure function of the data, which `collect` reads once from the folder of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.engine import evidence
from longshort.train import TrainConfig

Data = dict[str, Any]
"""Every number of an experiment, ready for JSON: `provenance`, `rows`, and what else its table and figure need."""
Message = Callable[[str], None]
Variants = dict[str, TrainConfig]
"""The configurations of a sweep by the name of the variant; seed and folder are set later."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came out for one claim."""

    ours: str
    verdict: str
    """HOLDS, PARTLY, FAILS, UNDECIDED or NOT_RUN, by the rule alone."""
    seeds: tuple[int, ...]
    """How many seeds each compared variant has, and how many they share; empty for measurements without seeds, such as
    timings."""
    brief: str = ""
    """`ours` for a table of all claims, where it is too long for that."""

    def by_seeds(self) -> Finding:
        """The same with the weaker verdict of one seed or two, where a side has no more."""
        return replace(self, verdict=evidence.by_seeds(self.verdict, self.seeds))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that the paper says or that follows from it, and that numbers can decide."""

    text: str
    paper: str
    """What the paper reports."""
    rule: str
    """When it holds, and when partly; written before the runs."""
    judge: Callable[[Data], Finding | None]
    """The rule as a function; None where the data do not decide."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a person may choose about a call of `python -m experiments`."""

    out: Path
    """Folder of the runs."""
    data: Path | None = None
    """Token folder; without it `quick` uses the default data. For experiments on tasks, the folder of their files."""
    steps: int | None = None
    """The experiment's own if None."""
    seeds: tuple[int, ...] = (0,)
    variants: tuple[str, ...] | None = None
    """Names or shell patterns; all if None."""
    device: str = "auto"
    parallel: int = 1
    """Runs at a time."""
    minutes: float | None = None
    """Stop cleanly after this time; run the same command again to resume."""
    quick: bool = False
    """The CPU-sized version."""
    overrides: tuple[str, ...] = ()
    """`section.key=value`, applied before the variants' own changes; one that every variant overrides is refused."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question, answered by training runs (`variants`) or by another kind of measurement (`measure`)."""

    name: str
    """As in `python -m experiments NAME`; its module is the same with underscores."""
    question: str
    """What it asks, in one line."""
    method: str
    """How it is done and where that differs from the paper, for its page."""
    cost: str
    """Roughly how long it takes, on an H200 and on a CPU."""
    claims: Mapping[str, Claim]
    collect: Callable[[Path], Data]
    """Reads the data from the folder of the runs, or of what was unpacked."""
    table: Callable[[Data], str]
    """Its main table, in Markdown."""
    figure: Callable[[Data], Any]
    """An Altair chart."""
    caption: str
    """What the figure shows."""
    more: Callable[[Data], str] | None = None
    """Further tables."""
    variants: Callable[[TrainConfig], Variants] | None = None
    """Every variant of the sweep, from the base configuration; pure."""
    on_request: tuple[str, ...] = ()
    """Variants that cost far more than others: a pattern of `--variants` takes them only if it matches nothing else."""
    base: Mapping[str, Mapping[str, Any]] | None = None
    """Sections of the base configuration in place of the author's; with a task the runs need no token folder."""
    quick_base: Mapping[str, Mapping[str, Any]] | None = None
    """The same for `--quick`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the base configuration, as `section.key: value`."""
    steps: int = 0
    """Optimizer steps of each run."""
    process: str = "experiments.engine.child"
    """The module that is run for each training, in a process of its own."""
    measure: Callable[[Options, Message], None] | None = None
    """Measures and writes into `options.out`, reporting progress to the second argument."""
    join: Callable[[Data, Data], Data] | None = None
    """The published data with new data; run by run and seed by seed if None."""

    def findings(self, data: Data) -> dict[str, Finding]:
        """The findings that the data decide, by the key of the claim; a claim that they leave open is absent."""
        judged = {key: claim.judge(data) for key, claim in self.claims.items()}
        return {key: found.by_seeds() for key, found in judged.items() if found is not None}
