"""Tables of runs side by side: a live one while they train, and the final one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from longshort.runs import Reader
from longshort.train.sweeps.trials import Trial

_PLAIN_SECONDS = 20.0
"""Between tables where the output is not a terminal."""


class Watch(Protocol):
    """Called again and again with the runs' logs."""

    def __call__(self, readers: dict[str, Reader]) -> None: ...


@contextmanager
def live_table(trials: Sequence[Trial], console: Console) -> Iterator[Watch]:
    """A watcher for `run_all` that keeps a table of runs current, or prints lines without a terminal."""
    if not console.is_terminal:
        yield _Lines(trials, console)
        return
    if not trials:
        yield lambda readers: None
        return
    with Live(running_table(trials, {}), console=console, refresh_per_second=4) as live:

        def watch(readers: dict[str, Reader]) -> None:
            live.update(running_table(trials, readers))

        yield watch


class _Lines:
    """Every now and then, a line for each run that has advanced."""

    def __init__(self, trials: Sequence[Trial], console: Console) -> None:
        self._trials, self._console, self._last = trials, console, -math.inf
        self._said: dict[str, str] = {}

    def __call__(self, readers: dict[str, Reader]) -> None:
        if time.monotonic() - self._last < _PLAIN_SECONDS:
            return
        self._last = time.monotonic()
        for trial in self._trials:
            line = _line(_cells(trial, readers.get(str(trial.out))))
            if self._said.get(str(trial.out)) != line:
                self._said[str(trial.out)] = line
                self._console.print(line, highlight=False, soft_wrap=True)


def _line(cells: Sequence[str]) -> str:
    """
    >>> _line(["ls", "0", "0/800", "", "", "", "", "waiting"])
    'ls seed 0: step 0/800, waiting'
    >>> _line(["ls", "0", "24/800", "4.106", "", "0.407", "4,572", "6:18"])
    'ls seed 0: step 24/800, loss 4.106, max |logit| 0.407, 4,572 tokens/s, 6:18 left'
    """
    variant, seed, step, *values, left = cells
    forms = ("loss {}", "validation {}", "max |logit| {}", "{} tokens/s")
    known = [form.format(value) for form, value in zip(forms, values, strict=True) if value]
    return ", ".join([f"{variant} seed {seed}: step {step}", *known, left if left == "waiting" else f"{left} left"])


def running_table(trials: Sequence[Trial], readers: dict[str, Reader]) -> Table:
    """Where each run stands."""
    table = Table(title="training side by side", box=box.SIMPLE_HEAD, padding=0)
    for name in ("variant", "seed", "step", "loss", "validation", "|logit|", "tokens/s", "left"):
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    for trial in trials:
        table.add_row(*_cells(trial, readers.get(str(trial.out))))
    return table


def _cells(trial: Trial, reader: Reader | None) -> list[str]:
    step, steps = None if reader is None else reader.step, trial.config.run.steps
    if reader is None or step is None:
        return [trial.variant, str(trial.seed), f"0/{steps}", "", "", "", "", "waiting"]
    left = (steps - step.step) * step.seconds / max(1, step.step)
    evaluation, logits = reader.evaluation, reader.logits_LH
    return [
        trial.variant,
        str(trial.seed),
        f"{step.step}/{steps}",
        number(step.loss),
        "" if evaluation is None else number(evaluation.loss),
        "" if logits is None else number(float(logits.max())),
        f"{step.tokens_per_second:,.0f}",
        f"{int(left // 60)}:{int(left % 60):02d}",
    ]


def result_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The rows that `summary.summarize` makes."""
    sizes = sorted({row["parameters"] for row in rows})
    size = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    several = any(row["seeds"] > 1 for row in rows)
    over_seeds = "means over seeds; spread: highest minus lowest loss; " if several else ""
    table = Table(
        title=f"validation after training; {size} parameters",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption=f"{over_seeds}|logit|: largest",
    )
    with_answers = any(row.get("accuracy") is not None for row in rows)
    second = "accuracy" if with_answers else "perplexity"
    for name in ("variant", "seeds", "loss", "spread", second, "|logit|", "tokens/s", "spikes"):
        table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["variant"],
            str(row["seeds"]),
            number(row["validation_loss"]),
            number(row["spread"]) if row["seeds"] > 1 else "-",
            _share(row.get("accuracy")) if with_answers else number(row["perplexity"]),
            number(row["max_logit"]) if row.get("logits_recorded", True) else "-",
            f"{row['tokens_per_second']:,.0f}",
            str(row["spikes"]),
        )
    return table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def number(value: float | None) -> str:
    """Four digits, so that a table fits into 80 columns; `nan` for None and NaN, which stand for not finite."""
    return f"{value:.4g}" if value is not None and math.isfinite(value) else "nan"
