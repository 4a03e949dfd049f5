"""The lines of `metrics.jsonl` as typed records, and the only place that checks them.

Non-finite numbers are null in the file and NaN here. Kinds of record that a later version adds are skipped, so that the
rest can still be read.

Shape letters: L layers, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longshort.files import Damaged, unsealed
from longshort.numeric import is_int

FORMAT = 1
COLUMNS = ("step", "loss", "lr", "grad_norm", "tokens", "seconds", "tokens_per_second", "mfu")
"""The numbers of a training step."""
LEARNING = (
    *("reward", "signal_share", "token_entropy", "kl", "clip_share", "mixed_share", "thinking_length", "answer_length"),
    *("gradient_signal", "gradient_noise", "rollout_kl", "rollouts_per_second", "rollout_share"),
)
"""What a step of reinforcement learning measures besides; not every algorithm measures all of it."""
_NOT_NULL = ("step", "tokens", "seconds", "tokens_per_second")


class RunError(ValueError):
    """A run that cannot be read; the message is one line for the user."""


@dataclass(frozen=True)
class Header:
    """The description of the run; only the first line holds one."""

    name: str
    config: dict[str, Any]
    seed: int
    device: str
    parameters: int
    plans: tuple[tuple[int | None, ...], ...]
    """Per layer, per head: the window, or None for a head that sees everything before it."""
    versions: dict[str, Any]
    git: str | None
    started: str
    firsts: tuple[tuple[int, ...], ...] | None = None
    """Per layer, per head: first keys that the head sees besides its window; None if no head does."""
    texts: dict[str, str] | None = None
    """Checksums of the texts that it was trained and validated with; None if it has none, or they were not recorded."""

    @property
    def sees(self) -> tuple[tuple[int | tuple[int, int] | None, ...], ...]:
        """Per layer, per head: the window, (first keys, window), or None for a head that sees everything before it."""
        if self.firsts is None:
            return self.plans
        return tuple(
            tuple((f, w) if f and w is not None else w for w, f in zip(*layer, strict=True))
            for layer in zip(self.plans, self.firsts, strict=True)
        )

    @property
    def shape_LH(self) -> tuple[int, int]:
        return len(self.plans), len(self.plans[0]) if self.plans else 0


@dataclass(frozen=True)
class Step:
    """One optimizer step."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: float
    seconds: float
    """Time spent in steps so far."""
    tokens_per_second: float
    mfu: float
    logits_LH: np.ndarray | None = None
    """max |logit| of each head, if recorded at this step."""
    learning: dict[str, float] | None = None
    """The `LEARNING` of a step of reinforcement learning."""


@dataclass(frozen=True)
class Evaluation:
    """The validation split after a step."""

    step: int
    loss: float
    perplexity: float
    accuracy: float | None = None
    """Share of right answers, if the run has a task."""
    reward: float | None = None
    """Mean reward, in reinforcement learning."""


@dataclass(frozen=True)
class Spike:
    """A step that the guard judged to be a spike."""

    step: int
    loss: float
    reason: str
    action: str


@dataclass(frozen=True)
class Sample:
    """Text that the model generated."""

    step: int
    text: str


@dataclass(frozen=True)
class Resume:
    """The run was resumed after this step."""

    step: int


@dataclass(frozen=True)
class End:
    """The run stopped, on its own or on request."""

    step: int
    status: str
    """finished, interrupted or diverged."""
    since: int | None = None
    """For a run that diverged: its first non-finite step."""
    reason: str = ""
    """For a run that diverged: how it happened according to the log, and what to try."""


Record = Header | Step | Evaluation | Spike | Sample | Resume | End


@dataclass(frozen=True)
class Line:
    """One line of the file; its errors name the file and the line."""

    file: Path
    number: int
    data: dict[str, Any]

    @classmethod
    def parse(cls, file: Path, number: int, text: str) -> Line:
        """Parse a line; a `RunError` if it is not a record."""
        try:
            data = unsealed(text)
        except ValueError as error:
            problem = "damaged" if isinstance(error, Damaged) else "not JSON"
            raise RunError(f"{file}, line {number}: {problem} ({error}); remove the line to read the rest") from None
        if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
            raise RunError(f"{file}, line {number}: must be an object with a 'kind', got {text[:40]!r}")
        return cls(file, number, data)

    @property
    def kind(self) -> str:
        return str(self.data["kind"])

    def error(self, what: str) -> RunError:
        return RunError(f"{self.file}, line {self.number}: {what}")

    def get(self, key: str, kind: type) -> Any:
        if key not in self.data:
            raise self.error(f"the {self.kind} record has no {key!r}")
        value = self.data[key]
        allowed = (int, float) if kind is float else kind
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise self.error(f"{key!r} must be {kind.__name__}, got {str(value)[:40]!r}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:  # arrays cannot hold it
            raise self.error(f"{key!r} must fit into 64 bits, got {str(value)[:40]!r}")
        return value

    def optional(self, key: str, kind: type) -> Any:
        return None if self.data.get(key) is None else self.get(key, kind)

    def number_or_nan(self, key: str) -> float:
        return np.nan if self.data.get(key) is None else float(self.get(key, float))

    def matrix(self, key: str, shape_LH: tuple[int, int]) -> np.ndarray:
        values = self.get(key, list)
        try:
            matrix_LH = np.array(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            raise self.error(f"{key!r} must be a list of numbers for each layer") from None
        if matrix_LH.shape != shape_LH:
            shape = " x ".join(map(str, matrix_LH.shape))
            raise self.error(f"{key!r} must be {shape_LH[0]} layers x {shape_LH[1]} heads, got {shape}")
        return matrix_LH


def header(line: Line) -> Header:
    """The description on the first line."""
    if line.data.get("format") != FORMAT:
        raise line.error(f"format {line.data.get('format')!r}, but this version reads only format {FORMAT}")
    config = line.get("config", dict)
    if wrong := [name for name, section in config.items() if not isinstance(section, dict)]:
        raise line.error(f"'config' must hold sections of keys, got {wrong[0]!r} with {str(config[wrong[0]])[:40]!r}")
    firsts = None if line.data.get("firsts") is None else _by_head(line, "firsts")
    return Header(
        name=line.get("name", str),
        config=config,
        seed=line.get("seed", int),
        device=line.get("device", str),
        parameters=line.get("parameters", int),
        plans=_by_head(line, "plans", None),
        versions=line.optional("versions", dict) or {},
        git=line.optional("git", str),
        started=str(line.data.get("started", "")),
        firsts=firsts,
        texts=line.optional("texts", dict),
    )


def _by_head(line: Line, key: str, *others: None) -> tuple[tuple[Any, ...], ...]:
    """An integer for each head of each layer, or one of the `others`."""
    layers, heads, values = line.get("layers", int), line.get("heads", int), line.get(key, list)
    if len(values) != layers or any(not isinstance(layer, list) or len(layer) != heads for layer in values):
        raise line.error(f"{key!r} must list {heads} heads for each of {layers} layers")
    if wrong := [value for layer in values for value in layer if not is_int(value) and value not in others]:
        raise line.error(f"{key!r} must hold integers{' or null' if others else ''}, got {str(wrong[0])[:40]!r}")
    return tuple(tuple(layer) for layer in values)


def record(line: Line, shape_LH: tuple[int, int]) -> Record | None:
    """A later line; None for a kind or a split that this version does not know."""
    parser = _PARSERS.get(line.kind)
    return None if parser is None else parser(line, shape_LH)


def _step(line: Line, shape_LH: tuple[int, int]) -> Step:
    step = line.get("step", int)
    for column in _NOT_NULL:
        line.get(column, float)
    logits = None
    if "logit_max" in line.data:
        ends = [line.matrix(key, shape_LH) for key in ("logit_max", "logit_min")]
        # np.maximum, unlike max and fmax, keeps NaN: a head that overflowed must not look stable.
        logits = np.maximum(np.abs(ends[0]), np.abs(ends[1]))
    numbers = {column: line.number_or_nan(column) for column in COLUMNS[1:]}
    learning = {name: line.number_or_nan(name) for name in LEARNING} if "reward" in line.data else None
    return Step(step=step, **numbers, logits_LH=logits, learning=learning)


def _evaluation(line: Line, shape_LH: tuple[int, int]) -> Evaluation | None:
    step, loss = line.get("step", int), line.number_or_nan("loss")
    if line.data.get("split", "validation") != "validation":
        return None
    accuracy = line.number_or_nan("accuracy") if "accuracy" in line.data else None
    reward = line.number_or_nan("reward") if "reward" in line.data else None
    return Evaluation(step, loss, line.number_or_nan("perplexity"), accuracy, reward)


def _spike(line: Line, shape_LH: tuple[int, int]) -> Spike:
    texts = (line.get("reason", str), line.get("action", str))
    return Spike(line.get("step", int), line.number_or_nan("loss"), *texts)


def _end(line: Line, shape_LH: tuple[int, int]) -> End:
    story = (line.get("since", int), line.get("reason", str)) if "since" in line.data else ()
    return End(line.get("step", int), line.get("status", str), *story)


_PARSERS: dict[str, Callable[[Line, tuple[int, int]], Record | None]] = {
    "train": _step,
    "eval": _evaluation,
    "spike": _spike,
    "sample": lambda line, _: Sample(line.get("step", int), line.get("text", str)),
    "resume": lambda line, _: Resume(line.get("step", int)),
    "end": _end,
}
