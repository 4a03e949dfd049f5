"""Reading a run folder: `metrics.jsonl` becomes one `Run`, or one error that names the file and the line.

Metrics are append-only, so a resumed or rolled-back run holds some steps twice: what was written last is what counts.
Numbers that are not finite are null in the file and NaN here.

Shape letters: N recorded steps, L layers, H heads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
METRICS = "metrics.jsonl"
COLUMNS = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_second", "mfu")
NOT_NULL = ("step", "tokens", "seconds", "tokens_per_second")


class ReportError(ValueError):
    """A run that cannot be read, or a report that cannot be made; the message is one line for the user."""


@dataclass(frozen=True)
class Evaluation:
    step: int
    loss: float
    perplexity: float
    accuracy: float | None = None
    """Share of right answers, where the run has a task."""


@dataclass(frozen=True)
class Spike:
    step: int
    loss: float
    reason: str
    action: str


@dataclass(frozen=True)
class Sample:
    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one training run recorded."""

    path: Path
    name: str
    label: str
    """The name, made unique among the runs of a report."""
    variant: str
    """What is compared; runs of one variant differ by seed. `config["run"]["variant"]`, or else the name."""
    seed: int
    config: dict[str, Any]
    device: str
    versions: dict[str, Any]
    git: str | None
    parameters: int
    plans: tuple[tuple[int | None, ...], ...]
    """Per layer, per head: the window, or None for a head that sees everything before it."""
    started: str
    train: dict[str, np.ndarray]
    """The `COLUMNS` of the training steps, each (N,)."""
    logit_steps: np.ndarray
    logits_NLH: np.ndarray
    """max |logit| of each head at `logit_steps`."""
    evaluations: tuple[Evaluation, ...]
    spikes: tuple[Spike, ...]
    samples: tuple[Sample, ...]
    resumes: tuple[int, ...]
    status: str
    """finished, interrupted, or in progress (no end was recorded)."""
    notes: tuple[str, ...]
    """What a reader of the report should know about the file."""

    @property
    def last_step(self) -> int:
        steps = [*self.train["step"][-1:], *(e.step for e in self.evaluations[-1:])]
        return int(max(steps, default=0))

    def at_steps(self, steps: Any, column: str) -> np.ndarray:
        """Tokens or seconds at which the run reached `steps`, between the recorded ones by interpolation."""
        if not len(self.train["step"]):
            return np.full(len(steps), np.nan)
        return np.interp(steps, self.train["step"], self.train[column])


def load_run(path: Path | str) -> Run:
    """Read the run folder `path`.

    >>> load_run("no/such/run")
    Traceback (most recent call last):
    longshort.runs.reading.ReportError: no/such/run: no such run folder
    """
    folder = Path(path)
    if folder.name == METRICS:
        folder = folder.parent
    file = folder / METRICS
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such run folder")
    if not file.is_file():
        inside = sorted(folder.glob(f"*/{METRICS}"))
        hint = f"; there are runs inside it: name them, as in {inside[0].parent}" if inside else ""
        raise ReportError(f"{folder}: not a run folder, it has no {METRICS}{hint}")
    reading = _Reading(file)
    for line in _lines(file, reading.notes):
        reading.take(line)
    return reading.run()


def load_runs(paths: Sequence[Path | str]) -> list[Run]:
    """Read several runs and give each a label of its own."""
    if not paths:
        raise ReportError("no run folder was named; a report needs at least one")
    runs = [load_run(path) for path in paths]
    folders = [run.path.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise ReportError(f"{run.path}: named more than once")
    seeded = [f"{run.variant}, seed {run.seed}" for run in runs]
    for labels in ([run.name for run in runs], seeded, [str(run.path) for run in runs]):
        if len(set(labels)) == len(runs):
            return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    return [replace(run, label=str(folder)) for run, folder in zip(runs, folders, strict=True)]


@dataclass(frozen=True)
class _Line:
    """One record, with the means to complain about it."""

    file: Path
    number: int
    data: dict[str, Any]

    def error(self, what: str) -> ReportError:
        return ReportError(f"{self.file}, line {self.number}: {what}")

    def get(self, key: str, kind: type) -> Any:
        if key not in self.data:
            raise self.error(f"the {self.data['kind']} record has no {key!r}")
        value = self.data[key]
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise self.error(f"{key!r} is {str(value)[:40]!r}; expected {kind.__name__}")
        return value

    def number_or_nan(self, key: str) -> float:
        return np.nan if self.data.get(key) is None else float(self.get(key, float))

    def matrix_LH(self, key: str, layers: int, heads: int) -> np.ndarray:
        values = self.get(key, list)
        try:
            matrix_LH = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise self.error(f"{key!r} is not a list of numbers for each layer") from None
        if matrix_LH.shape != (layers, heads):
            shape = " x ".join(map(str, matrix_LH.shape))
            raise self.error(f"{key!r} is {shape}; expected {layers} layers x {heads} heads")
        return matrix_LH


def _lines(file: Path, notes: list[str]) -> Iterator[_Line]:
    try:
        texts = file.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    except OSError as error:
        raise ReportError(f"{file}: cannot be read: {error.strerror}") from None
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            data = json.loads(text, parse_constant=lambda name: None)
        except ValueError as error:
            if number == len(texts):
                notes.append(f"{file}, line {number}: the last line is torn and was left out")
                return
            raise ReportError(f"{file}, line {number}: not JSON: {error}") from None
        if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
            raise ReportError(f"{file}, line {number}: expected an object with a 'kind', got {text[:40]!r}")
        yield _Line(file, number, data)


def _drop_after(step: int, *records: dict[int, Any]) -> None:
    for by_step in records:
        for later in [s for s in by_step if s > step]:
            del by_step[later]


@dataclass
class _Reading:
    """The state of reading one file, record by record."""

    file: Path
    head: _Line | None = None
    train: dict[int, tuple[float, ...]] = field(default_factory=dict)
    logits: dict[int, np.ndarray] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    samples: dict[int, Sample] = field(default_factory=dict)
    spikes: list[Spike] = field(default_factory=list)
    resumes: list[int] = field(default_factory=list)
    status: str = "in progress"
    notes: list[str] = field(default_factory=list)

    def take(self, line: _Line) -> None:
        kind = line.data["kind"]
        if (self.head is None) != (kind == "run"):
            problem = f"a {kind} record came first" if self.head is None else "a second run record"
            raise line.error(f"{problem}; the first line, and no other, describes the run")
        # A kind that a later version adds is no reason to refuse what this one knows.
        handle = getattr(self, f"_take_{kind}", None)
        if handle is not None:
            handle(line)

    def _take_run(self, line: _Line) -> None:
        if line.data.get("format") != FORMAT:
            raise line.error(f"format is {line.data.get('format')!r}; this version reads format {FORMAT}")
        plans, layers, heads = line.get("plans", list), line.get("layers", int), line.get("heads", int)
        if len(plans) != layers or any(not isinstance(plan, list) or len(plan) != heads for plan in plans):
            raise line.error(f"'plans' does not give {heads} heads for each of {layers} layers")
        self.head = line

    def _take_train(self, line: _Line) -> None:
        assert self.head is not None
        step = line.get("step", int)
        if self.train and step <= next(reversed(self.train)):  # rolled back: these steps are done again
            _drop_after(step - 1, self.train, self.logits)
            _drop_after(step, self.evaluations, self.samples)
        for column in NOT_NULL:
            line.get(column, float)
        self.train[step] = tuple(line.number_or_nan(column) for column in COLUMNS)
        if "logit_max" in line.data:
            layers, heads = self.head.data["layers"], self.head.data["heads"]
            ends = [line.matrix_LH(key, layers, heads) for key in ("logit_max", "logit_min")]
            # np.maximum, unlike max and fmax, keeps NaN: a head that overflowed must not look calm.
            self.logits[step] = np.maximum(np.abs(ends[0]), np.abs(ends[1]))

    def _take_eval(self, line: _Line) -> None:
        step, loss = line.get("step", int), line.number_or_nan("loss")
        if line.data.get("split", "validation") == "validation":
            perplexity = line.number_or_nan("perplexity")
            self.evaluations.pop(step, None)
            accuracy = line.number_or_nan("accuracy") if "accuracy" in line.data else None
            self.evaluations[step] = Evaluation(step, loss, perplexity, accuracy)

    def _take_spike(self, line: _Line) -> None:
        texts = (line.get("reason", str), line.get("action", str))
        self.spikes.append(Spike(line.get("step", int), line.number_or_nan("loss"), *texts))

    def _take_resume(self, line: _Line) -> None:
        step = line.get("step", int)
        _drop_after(step, self.train, self.logits, self.evaluations, self.samples)
        self.spikes = [spike for spike in self.spikes if spike.step <= step]
        self.resumes.append(step)
        self.status = "in progress"

    def _take_sample(self, line: _Line) -> None:
        step = line.get("step", int)
        self.samples[step] = Sample(step, line.get("text", str))

    def _take_end(self, line: _Line) -> None:
        self.status = line.get("status", str)

    def run(self) -> Run:
        if self.head is None:
            raise ReportError(f"{self.file}: holds no record; expected the run's description on the first line")
        head, config = self.head, self.head.get("config", dict)
        section = config.get("run")
        variant = section.get("variant") if isinstance(section, dict) else None
        shape = (len(self.logits), head.data["layers"], head.data["heads"])
        name = head.get("name", str)
        table = np.array([self.train[step] for step in sorted(self.train)]).reshape(-1, len(COLUMNS))
        return Run(
            path=self.file.parent,
            name=name,
            label=name,
            variant=str(variant or name),
            seed=head.get("seed", int),
            config=config,
            device=head.get("device", str),
            versions=head.data.get("versions") or {},
            git=head.data.get("git"),
            parameters=head.get("parameters", int),
            plans=tuple(tuple(plan) for plan in head.data["plans"]),
            started=str(head.data.get("started", "")),
            train=dict(zip(COLUMNS, table.T, strict=True)),
            logit_steps=np.array(sorted(self.logits), dtype=np.int64),
            logits_NLH=np.array([self.logits[step] for step in sorted(self.logits)]).reshape(shape),
            evaluations=tuple(self.evaluations[step] for step in sorted(self.evaluations)),
            spikes=tuple(dict.fromkeys(sorted(self.spikes, key=lambda spike: spike.step))),
            samples=tuple(self.samples[step] for step in sorted(self.samples)),
            resumes=tuple(self.resumes),
            status=self.status,
            notes=tuple(self.notes),
        )
