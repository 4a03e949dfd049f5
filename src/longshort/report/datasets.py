"""Data for the charts, thinned and rounded so that the page stays small.

A table is stored by column, and constants once; `rows` unpacks it, and so does the page's script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longshort.report.seeds import SeedLine, seed_line, window
from longshort.report.thinning import blocks, thin
from longshort.runs import Run

CURVE_POINTS = 16_000  # of all runs together
MAX_CURVE_POINTS = 900  # of one run: about one per pixel
MIN_CURVE_POINTS = 120
HEAT_CELLS = 120_000  # of all runs together
MAX_HEAT_BINS = 96
MIN_HEAT_BINS = 8
DIGITS = 5
PLACES = ("step", "tokens", "time")
TIME_UNITS = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))

MEASURES = {
    "reward": ("reward", "mean reward"),
    "token_entropy": ("entropy", "entropy (nats per token)"),
    "kl": ("KL", "KL to the reference (nats per token)"),
    "clip_share": ("clipped", "share of tokens clipped"),
    "signal_share": ("groups", "share of groups with a signal"),
    "thinking_length": ("thinking", "thinking tokens"),
    "answer_length": ("answer", "answer tokens"),
    "mixed_share": ("mixtures", "share of mixtures not nearly one token"),
}
"""The drawn measures of reinforcement learning: the word on the button, and the title of the axis."""

Table = dict[str, Any]
"""{"constants": {name: value}, "columns": {name: [values]}}"""


@dataclass(frozen=True)
class Datasets:
    tables: dict[str, list[Table]]
    heat: list[list[dict[str, Any]]]
    """Per run, one row for each stretch of steps: its first step, the next one's, and the value of every head."""
    time_unit: str
    smoothing: dict[str, int]
    """Most steps over which a point of the smoothed `loss` or `logit` is the median; 1 where nothing is smoothed."""
    seeds: int
    """Most seeds of a variant."""
    x_ends: dict[str, float]
    """Where each horizontal axis ends; all start at 0."""
    loss_range: tuple[float, float]
    clipped: bool
    """Whether some losses lie above `loss_range`."""
    peak_range: tuple[float, float] | None
    """Of the largest |logit| of a step; None where no run recorded logits."""
    logit_range: tuple[float, float] | None
    """Of |logit| over all heads and steps."""


def rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """
    >>> rows([{"constants": {"run": "a"}, "columns": {"step": [1, 2]}}])
    [{'run': 'a', 'step': 1}, {'run': 'a', 'step': 2}]
    """
    unpacked = []
    for table in tables:
        for values in zip(*table["columns"].values(), strict=True):
            unpacked.append({**table["constants"], **dict(zip(table["columns"], values, strict=True))})
    return unpacked


def rounded(value: float) -> float | int | None:
    """`DIGITS` significant digits; null for what is not finite, as JSON has it."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _column(values: Any) -> list[Any]:
    return [rounded(float(value)) for value in values]


def perplexities(losses: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.exp(np.asarray(losses, dtype=np.float64))


def build(runs: Sequence[Run]) -> Datasets:
    longest = max((float(run.train["seconds"][-1]) for run in runs if len(run.train["step"])), default=0.0)
    unit, divisor = next(((u, d) for u, d in TIME_UNITS if longest >= 2 * d), TIME_UNITS[-1])
    packing = _Packing(divisor, max(MIN_CURVE_POINTS, min(MAX_CURVE_POINTS, CURVE_POINTS // len(runs))))
    by_run = (packing.curve, packing.spikes, packing.logits, packing.peak, packing.diverged, packing.learning)
    by_variant = (packing.trend, packing.validation, packing.logit_trend, packing.learning_trend, packing.rewards)
    seeds = [[run for run in runs if run.variant == name] for name in dict.fromkeys(run.variant for run in runs)]
    tables = {pack.__name__: [pack(run) for run in runs] for pack in by_run}
    tables |= {pack.__name__: [pack(of_variant) for of_variant in seeds] for pack in by_variant}
    everything = [table for kind in tables.values() for table in kind]
    loss_range, clipped = _loss_range(tables)
    peaks = _finite(tables["logits"], "logit")
    cells = np.concatenate([run.logits_NLH.ravel() for run in runs])
    cells = cells[np.isfinite(cells) & (cells > 0)]
    return Datasets(
        tables=tables,
        heat=_heat(runs),
        time_unit=unit,
        smoothing={
            "loss": max(_steps_smoothed(run.train["step"]) for run in runs),
            "logit": max(_steps_smoothed(run.logit_steps) for run in runs),
            "learning": max(_steps_smoothed(run.learning["step"]) for run in runs),
        },
        seeds=max(map(len, seeds)),
        # Without a little room on the right, the last point would be cut in half.
        x_ends={name: 1.015 * max(_finite(everything, name), default=1.0) for name in PLACES},
        loss_range=loss_range,
        clipped=clipped,
        peak_range=(0.85 * min(peaks), 1.25 * max(peaks)) if peaks else None,
        logit_range=(float(cells.min()), float(cells.max())) if len(cells) else None,
    )


def _steps_smoothed(steps: np.ndarray) -> int:
    """How many steps the median of a smoothed point spans."""
    over = window(len(steps))
    return 1 if over == 1 else round(over * float(steps[-1] - steps[0]) / (len(steps) - 1))


def _finite(tables: Sequence[Table], name: str) -> list[float]:
    return [value for table in tables for value in table["columns"].get(name, ()) if value is not None]


def _loss_range(tables: dict[str, list[Table]]) -> tuple[tuple[float, float], bool]:
    """The range of the axis; a run that blows up to many times its first loss must not flatten all other curves."""
    losses = _finite([*tables["curve"], *tables["validation"], *tables["spikes"]], "loss")
    if not losses:
        return (0.0, 1.0), False
    first = max(
        (table["columns"]["loss"][0] or 0.0 for table in tables["curve"] if table["columns"]["loss"]), default=0.0
    )
    low, high = min(losses), max(losses)
    clipped = first > 0 and high > 3 * first
    high = 1.5 * first if clipped else high
    margin = 0.04 * (high - low) or 0.1
    return (low - margin, high + margin), clipped


@dataclass(frozen=True)
class _Packing:
    time_divisor: float
    points: int

    def _table(self, runs: Sequence[Run], steps: Any, **columns: list[Any]) -> Table:
        """A table of one run, or of a variant's runs at their mean tokens and time."""
        tokens, seconds = (
            np.mean([run.at_steps(steps, name) for run in runs], axis=0) for name in ("tokens", "seconds")
        )
        places = {
            "step": [int(step) for step in steps],
            "tokens": _column(tokens),
            "time": _column(seconds / self.time_divisor),
        }
        label = runs[0].label if len(runs) == 1 else f"{runs[0].variant}, mean of {len(runs)} seeds"
        return {"constants": {"run": label, "variant": runs[0].variant}, "columns": places | columns}

    def _losses(self, run: Run, steps: Any, losses: Any, **columns: list[Any]) -> Table:
        return self._table([run], steps, loss=_column(losses), perplexity=_column(perplexities(losses)), **columns)

    def curve(self, run: Run) -> Table:
        losses = run.train["loss"]
        kept = thin(losses, self.points)
        return self._losses(run, run.train["step"][kept], losses[kept])

    def trend(self, runs: Sequence[Run]) -> Table:
        lines = {
            "loss": seed_line([(run.train["step"], run.train["loss"]) for run in runs]),
            "perplexity": seed_line([(run.train["step"], perplexities(run.train["loss"])) for run in runs]),
        }
        return self._table(runs, lines["loss"].steps, **_bands(lines))

    def validation(self, runs: Sequence[Run]) -> Table:
        """The mean over the seeds that were evaluated at a step, and the lowest and the highest."""
        found: dict[int, list[Any]] = {}
        for run in runs:
            for evaluation in run.evaluations:
                found.setdefault(evaluation.step, []).append(evaluation)
        steps = np.array(sorted(found), dtype=np.int64)
        steps = steps[thin(np.array([np.mean([e.loss for e in found[step]]) for step in steps]), self.points)]
        lines = {}
        for name in ("loss", "perplexity"):
            values = [[getattr(e, name) for e in found[step]] for step in steps]
            lines[name] = SeedLine(steps, *(np.array([take(v) for v in values]) for take in (np.mean, np.min, np.max)))
        return self._table(runs, steps, **_bands(lines), seeds=[len(found[step]) for step in steps])

    def learning(self, run: Run) -> Table:
        """What steps of reinforcement learning measured; a column is empty where its values are not finite."""
        kept = thin(run.learning["reward"], self.points)
        columns = {name: _column(run.learning[name][kept]) for name in MEASURES}
        return self._table([run], run.learning["step"][kept], **columns)

    def learning_trend(self, runs: Sequence[Run]) -> Table:
        learned = [run for run in runs if len(run.learning["step"])]
        lines = {n: seed_line([(run.learning["step"], run.learning[n]) for run in learned]) for n in MEASURES}
        return self._table(runs, lines["reward"].steps, **_bands(lines))

    def rewards(self, runs: Sequence[Run]) -> Table:
        """Validation rewards, of every run."""
        found = [(e.step, e.reward) for run in runs for e in run.evaluations if e.reward is not None]
        return self._table(runs, [step for step, _ in found], reward=_column(reward for _, reward in found))

    def spikes(self, run: Run) -> Table:
        spikes = [run.spikes[i] for i in thin(np.array([s.loss for s in run.spikes]), self.points)]
        texts = {"action": [s.action for s in spikes], "reason": [s.reason for s in spikes]}
        return self._losses(run, [s.step for s in spikes], [s.loss for s in spikes], **texts)

    def diverged(self, run: Run) -> Table:
        return self._table([run], [] if run.diverged_at is None else [run.diverged_at])

    def logits(self, run: Run) -> Table:
        layers, heads = run.logits_NLH.shape[1:]
        cells = run.logits_NLH.reshape(-1, layers * heads)
        finite, highest = np.isfinite(cells), _highest(run)
        # A step at which a head was not finite must survive, as the extremes do.
        kept = thin(np.where(finite.all(axis=1), highest, np.nan), self.points)
        at = np.where(finite, cells, -np.inf)[kept].argmax(axis=1) if len(kept) else ()
        return self._table(
            [run],
            run.logit_steps[kept],
            logit=[rounded(float(value)) if value > 0 else None for value in highest[kept]],
            layer=[int(cell) // heads for cell in at],
            head=[int(cell) % heads for cell in at],
            lost=[int(count) for count in (~finite)[kept].sum(axis=1)],
        )

    def logit_trend(self, runs: Sequence[Run]) -> Table:
        measured = [run for run in runs if len(run.logit_steps)]
        line = seed_line([(run.logit_steps, np.where(_highest(run) > 0, _highest(run), np.nan)) for run in measured])
        return self._table(runs, line.steps, **_bands({"logit": line}))

    def peak(self, run: Run) -> Table:
        """Where the run's largest finite |logit| was."""
        highest = _highest(run)
        at = [int(highest.argmax())] if len(highest) and highest.max() > 0 else []
        return self._table([run], run.logit_steps[at], logit=_column(highest[at]))


def _highest(run: Run) -> np.ndarray:
    """The largest finite |logit| of any head at each step (N,); -inf where none is finite."""
    finite_NLH = np.where(np.isfinite(run.logits_NLH), run.logits_NLH, -np.inf)
    return finite_NLH.max(axis=(1, 2), initial=-np.inf)


def _bands(lines: dict[str, SeedLine]) -> dict[str, list[Any]]:
    """The columns NAME, NAME_low and NAME_high of each line."""
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {f"{name}{end}": _column(getattr(line, part)) for name, line in lines.items() for end, part in ends.items()}


def _heat(runs: Sequence[Run]) -> list[list[dict[str, Any]]]:
    cells_a_step = sum(run.logits_NLH.shape[1] * run.logits_NLH.shape[2] for run in runs)
    bins = max(MIN_HEAT_BINS, min(MAX_HEAT_BINS, HEAT_CELLS // max(1, cells_a_step)))
    return [_heat_rows(run, bins) for run in runs]


def _heat_rows(run: Run, bins: int) -> list[dict[str, Any]]:
    """The highest value of each head in each bin; null as soon as one value in it was not finite."""
    steps = run.logit_steps
    parts = blocks(len(steps), bins)
    starts = [int(steps[part[0]]) for part in parts]
    if not starts:
        return []
    gap = int(steps[-1] - steps[-2]) if len(steps) > 1 else 1
    ends = [*starts[1:], int(steps[-1]) + gap]
    values = [run.logits_NLH[part].max(axis=0).ravel() for part in parts]
    return [
        {"step": start, "until": end, "logit": [_short(value) for value in cells]}
        for start, end, cells in zip(starts, ends, values, strict=True)
    ]


def _short(value: float) -> float | int | None:
    short = rounded(float(value))
    return None if short is None else float(f"{short:.3g}")
