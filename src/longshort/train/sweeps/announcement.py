"""Announces several runs in words: their data, how many there are, their steps, and roughly how long they will take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from longshort.runs import Reader
from longshort.train.settings.config import TrainConfig
from longshort.train.text import TextData

_MEASURED_STEPS = 5
"""Steps a run must have taken before the forecast, since the first step is slower than the rest."""


def announce_data(config: TrainConfig) -> str:
    """What a run trains on. The default text is prepared first if it does not exist yet."""
    if config.task.name is not None:
        return f"training on examples of the task {config.task.name}"
    stream = TextData.open(config).stream("train", seed=config.run.seed)
    share = "" if config.data.share == 1 else f", a share of {config.data.share:g} of them"
    tokens = f"{len(stream.token_file):,} tokens{share}"
    read = config.run.steps * config.data.batch_size * config.length
    if config.data.path is None:
        what = f"the text of Python's standard library ({tokens}), since no data.path is given"
    else:
        what = f"{config.data.path} ({tokens})"
    return f"training on {what}; each run reads {read:,} tokens"


def announce_runs(configs: Sequence[TrainConfig], finished: int, jobs: int) -> str:
    """How many runs of how many steps are left.

    >>> announce_runs([TrainConfig.load("tiny")] * 4, finished=2, jobs=2)
    '4 runs of 500 steps each, 2 at a time; 2 more are finished already'
    """
    steps = sorted({config.run.steps for config in configs})
    length = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    runs = "1 run" if len(configs) == 1 else f"{len(configs)} runs"
    each = " each" if len(configs) > 1 else ""
    at_once = f", {min(jobs, len(configs))} at a time" if len(configs) > 1 else ""
    done = f"; {finished} more {'is' if finished == 1 else 'are'} finished already" if finished else ""
    return f"{runs} of {length} steps{each}{at_once}{done}"


class Forecast:
    """Says once, after the first steps, roughly how long all the runs will take."""

    def __init__(self, configs: Sequence[TrainConfig], jobs: int, message: Callable[[str], None]) -> None:
        self._configs, self._jobs, self._message, self._told = configs, min(jobs, len(configs)), message, False

    def __call__(self, readers: dict[str, Reader]) -> None:
        newest = [reader.step for reader in readers.values() if reader.step is not None]
        measured = [step for step in newest if step.step >= _MEASURED_STEPS]
        if self._told or not measured:
            return
        self._told = True
        per_step = sum(step.seconds for step in measured) / sum(step.step for step in measured)
        left = sum(config.run.steps for config in self._configs) - sum(step.step for step in newest)
        self._message(f"all runs together will take about {_duration(max(0, left) * per_step / self._jobs)}")


def _duration(seconds: float) -> str:
    """
    >>> _duration(40), _duration(61), _duration(5400)
    ('a minute', '2 minutes', '1.5 hours')
    """
    if seconds <= 60:
        return "a minute"
    return f"{math.ceil(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
