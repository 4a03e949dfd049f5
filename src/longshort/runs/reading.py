"""Reads a run folder: `metrics.jsonl` becomes one `Run`, or one error that names the file and the line.

A `Reader` can also follow a growing file. Metrics are append-only, so the log of a resumed or rolled-back run may hold
some steps twice: the last record counts.

Shape letters: N recorded steps, L layers, H heads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from longshort.runs import records
from longshort.runs.log import METRICS
from longshort.runs.records import (
    COLUMNS,
    LEARNING,
    End,
    Evaluation,
    Header,
    Line,
    Record,
    Resume,
    RunError,
    Sample,
    Spike,
    Step,
)

TAIL = 0.05
"""Share of the steps over which the final training loss is averaged."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one training run recorded, and its results.

    A result is None if it was not measured and NaN if it was not finite.
    """

    path: Path
    header: Header
    label: str
    """The run's name, made unique among the runs of a report."""
    train: dict[str, np.ndarray]
    """The `COLUMNS` of the training steps, each (N,)."""
    learning: dict[str, np.ndarray]
    """The steps of reinforcement learning and their `LEARNING`, each of one length; NaN where not measured."""
    logit_steps: np.ndarray
    logits_NLH: np.ndarray
    """max |logit| of each head at `logit_steps`."""
    evaluations: tuple[Evaluation, ...]
    spikes: tuple[Spike, ...]
    samples: tuple[Sample, ...]
    resumes: tuple[int, ...]
    end: End | None
    """None if no end was recorded or the run was resumed since."""
    notes: tuple[str, ...]
    """Remarks about the file for readers of the report."""

    @property
    def name(self) -> str:
        return self.header.name

    @property
    def variant(self) -> str:
        """What is compared: `config["run"]["variant"]`, or else the name. Runs of one variant differ by seed."""
        return str(self.config.get("run", {}).get("variant") or self.name)

    @property
    def seed(self) -> int:
        return self.header.seed

    @property
    def config(self) -> dict[str, Any]:
        return self.header.config

    @property
    def parameters(self) -> int:
        return self.header.parameters

    @property
    def status(self) -> str:
        """finished, interrupted, diverged, or in progress (no end was recorded)."""
        if self.diverged_at is not None:
            return "diverged"
        return "in progress" if self.end is None else self.end.status

    @property
    def diverged_at(self) -> int | None:
        """The step from which on nothing was finite; None for a run that is finite, or is again."""
        if self.end is not None and self.end.since is not None:
            return self.end.since
        finite = np.isfinite(self.train["loss"])
        if not len(finite) or finite[-1]:
            return None
        first = len(finite) - int(np.argmax(finite[::-1])) if finite.any() else 0
        return int(self.train["step"][first])

    def is_finished(self, steps: int) -> bool:
        """Whether it ended on its own, after at least this many steps or by diverging."""
        return finished(self.end, steps)

    @property
    def last_step(self) -> int:
        steps = [*self.train["step"][-1:], *(e.step for e in self.evaluations[-1:])]
        return int(max(steps, default=0))

    def at_steps(self, steps: Any, column: str) -> np.ndarray:
        """Tokens or seconds at which the run reached `steps`, interpolated between recorded steps."""
        if not len(self.train["step"]):
            return np.full(len(steps), np.nan)
        return np.interp(steps, self.train["step"], self.train[column])

    @property
    def final_loss(self) -> float | None:
        """Validation loss at the last evaluation."""
        return self.evaluations[-1].loss if self.evaluations else None

    @property
    def final_perplexity(self) -> float | None:
        return self.evaluations[-1].perplexity if self.evaluations else None

    @property
    def final_accuracy(self) -> float | None:
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def final_reward(self) -> float | None:
        return self.evaluations[-1].reward if self.evaluations else None

    @property
    def best_reward(self) -> float | None:
        """The highest validation reward."""
        return max((e.reward for e in self.evaluations if e.reward is not None), default=None)

    @property
    def best_loss(self) -> float | None:
        """The lowest finite validation loss."""
        return _lowest([evaluation.loss for evaluation in self.evaluations])

    @property
    def best_perplexity(self) -> float | None:
        return _lowest([evaluation.perplexity for evaluation in self.evaluations])

    @property
    def training_loss(self) -> float | None:
        """Mean over the last `TAIL` of the steps; NaN if the run ended on a non-finite loss."""
        losses = self.train["loss"]
        if not len(losses):
            return None
        tail = losses[-max(1, round(TAIL * len(losses))) :]
        finite = tail[np.isfinite(tail)]
        return float(finite.mean()) if len(finite) and math.isfinite(tail[-1]) else math.nan

    @property
    def largest_logit(self) -> float | None:
        """The largest finite |logit| of any head at any step; `logits_are_finite` says whether all were finite."""
        if not self.logits_NLH.size:
            return None
        finite = self.logits_NLH[np.isfinite(self.logits_NLH)]
        return float(finite.max()) if len(finite) else math.nan

    @property
    def logits_are_finite(self) -> bool:
        return bool(np.isfinite(self.logits_NLH).all())

    @property
    def speed(self) -> float | None:
        """Median tokens per second, so that the first steps, which compile and warm up, carry no extra weight."""
        rates = self.train["tokens_per_second"]
        return float(np.median(rates)) if len(rates) else None


def finished(end: End | None, steps: int) -> bool:
    """Whether nothing is left to do; a run that diverged is finished. This is the only place that decides it.

    An end recorded by an earlier call with fewer steps does not count.
    """
    return end is not None and (end.status == "diverged" or (end.status == "finished" and end.step >= steps))


def _lowest(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return min(finite) if finite else (math.nan if values else None)


class Reader:
    """Reads a run's file once, or repeatedly as it grows; a file that was rewound is read again.

    `step`, `evaluation`, `logits_LH` and `end` are the newest of their kind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inode = 0
        self._forget()

    def _forget(self) -> None:
        self.header: Header | None = None
        self.train: dict[int, Step] = {}
        self.logits: dict[int, np.ndarray] = {}
        self.evaluations: dict[int, Evaluation] = {}
        self.samples: dict[int, Sample] = {}
        self.spikes: list[Spike] = []
        self.resumes: list[int] = []
        self.end: End | None = None
        self.notes: list[str] = []
        self._offset = self._lines = 0
        self._rest = b""

    @property
    def step(self) -> Step | None:
        return self.train[next(reversed(self.train))] if self.train else None

    @property
    def evaluation(self) -> Evaluation | None:
        return self.evaluations[next(reversed(self.evaluations))] if self.evaluations else None

    @property
    def logits_LH(self) -> np.ndarray | None:
        return self.logits[next(reversed(self.logits))] if self.logits else None

    def update(self) -> None:
        """Read the new complete lines."""
        for text in self._whole_lines():
            self._take(text)

    def read_all(self) -> Run:
        """Read the whole file; its last line may be incomplete."""
        file = self.folder / METRICS
        try:
            self.update()
        except OSError as error:
            raise RunError(f"{file}: cannot be read: {error.strerror}") from None
        rest = self._rest.decode("utf-8", errors="replace")
        if rest.strip():
            try:
                Line.parse(file, self._lines + 1, rest)
            except RunError:
                self.notes.append(f"{file}, line {self._lines + 1}: the last line is incomplete and was left out")
            else:
                self._take(rest)
        return self.run()

    def _whole_lines(self) -> list[str]:
        file = self.folder / METRICS
        if not file.exists():
            return []
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            # A rewound log is a new file, which may be longer than the old one by now.
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._forget()
            self._inode = found.st_ino
            opened.seek(self._offset)
            data = opened.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset, self._rest = self._offset + len(whole), data[len(whole) :]
        return whole.decode("utf-8", errors="replace").split("\n")[:-1]

    def _take(self, text: str) -> None:
        self._lines += 1
        if not text.strip():
            return
        line = Line.parse(self.folder / METRICS, self._lines, text)
        if (self.header is None) != (line.kind == "run"):
            problem = f"a {line.kind} record before the run record" if self.header is None else "a second run record"
            raise line.error(f"{problem}; only the first line may describe the run")
        if self.header is None:
            self.header = records.header(line)
        elif (record := records.record(line, self.header.shape_LH)) is not None:
            self._add(record)

    def _add(self, record: Record) -> None:
        match record:
            case Step():
                if self.train and record.step <= next(reversed(self.train)):  # rolled back: these steps are repeated
                    _drop_after(record.step - 1, self.train, self.logits)
                    _drop_after(record.step, self.evaluations, self.samples)
                self.train[record.step] = record
                if record.logits_LH is not None:
                    self.logits[record.step] = record.logits_LH
            case Evaluation():
                self.evaluations.pop(record.step, None)
                self.evaluations[record.step] = record
            case Sample():
                self.samples[record.step] = record
            case Spike():
                self.spikes.append(record)
            case Resume():
                _drop_after(record.step, self.train, self.logits, self.evaluations, self.samples)
                # A batch that was rolled back does not come again; `rewind_log` left its spike here.
                self.spikes = [s for s in self.spikes if s.step <= record.step or s.action == "rollback"]
                self.resumes.append(record.step)
                self.end = None
            case End():
                self.end = record

    def run(self) -> Run:
        """The run as read so far."""
        if self.header is None:
            raise RunError(f"{self.folder / METRICS}: holds no record; line 1 must be the run's description")
        steps = [self.train[step] for step in sorted(self.train)]
        logit_steps = sorted(self.logits)
        learned = [(step.step, step.learning) for step in steps if step.learning is not None]
        learning = {"step": np.array([step for step, _ in learned], dtype=np.int64)}
        learning |= {name: np.array([values[name] for _, values in learned], dtype=np.float64) for name in LEARNING}
        shape = (len(logit_steps), *self.header.shape_LH)
        return Run(
            path=self.folder,
            header=self.header,
            label=self.header.name,
            train={name: np.array([getattr(step, name) for step in steps], dtype=np.float64) for name in COLUMNS},
            learning=learning,
            logit_steps=np.array(logit_steps, dtype=np.int64),
            logits_NLH=np.array([self.logits[step] for step in logit_steps]).reshape(shape),
            evaluations=tuple(self.evaluations[step] for step in sorted(self.evaluations)),
            spikes=tuple(dict.fromkeys(sorted(self.spikes, key=lambda spike: spike.step))),
            samples=tuple(self.samples[step] for step in sorted(self.samples)),
            resumes=tuple(self.resumes),
            end=self.end,
            notes=tuple(self.notes),
        )


def _drop_after(step: int, *by_step: dict[int, Any]) -> None:
    for records_of_a_kind in by_step:
        for later in [s for s in records_of_a_kind if s > step]:
            del records_of_a_kind[later]


def load_run(path: Path | str) -> Run:
    """Read the run folder `path`.

    >>> load_run("no/such/run")
    Traceback (most recent call last):
    longshort.runs.records.RunError: no/such/run: no such run folder
    """
    folder = Path(path)
    if folder.name == METRICS:
        folder = folder.parent
    if not folder.is_dir():
        raise RunError(f"{folder}: no such run folder")
    if not (folder / METRICS).is_file():
        inside = sorted(folder.glob(f"*/{METRICS}"))
        hint = f"; it holds runs, so name them, as in {inside[0].parent}" if inside else ""
        raise RunError(f"{folder}: not a run folder (no {METRICS}){hint}")
    return Reader(folder).read_all()


def find_runs(paths: Sequence[Path | str]) -> list[Path]:
    """The run folders among `paths`, and those inside folders of runs, which comparisons and sweeps make."""
    found: list[Path] = []
    for path in map(Path, paths):
        if path.name == METRICS or (path / METRICS).is_file() or not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file.parent for depth in ("*", "*/*", "*/*/*") for file in path.glob(f"{depth}/{METRICS}"))
        if not inside:
            raise RunError(f"{path}: holds no run (no {METRICS}); name a run folder or a folder of runs")
        found += inside
    return found


def load_runs(paths: Sequence[Path | str]) -> list[Run]:
    """Read several runs and give each a unique label."""
    if not paths:
        raise RunError("paths must name at least one run folder, got none")
    runs = [load_run(path) for path in paths]
    folders = [run.path.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise RunError(f"{run.path}: named more than once; name each run once")
    seeded = [f"{run.variant}, seed {run.seed}" for run in runs]
    for labels in ([run.name for run in runs], seeded, [str(run.path) for run in runs]):
        if len(set(labels)) == len(runs):
            return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    return [replace(run, label=str(folder)) for run, folder in zip(runs, folders, strict=True)]
