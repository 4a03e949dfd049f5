"""The cells of `soft-thinking` and their order: supervised starts, learning rates, then every variant with every seed.

A cell that is in the folder is not repeated, and one that was stopped is resumed, so a call may end at any time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.engine.base import on_cuda
from experiments.engine.measures import read_json
from experiments.engine.records import Message, Options
from experiments.engine.sweep import chosen, remember_command
from experiments.soft_thinking.cell import CELL, SIZES, WEIGHTS, counted, kept_settings
from experiments.soft_thinking.settings import (
    FAMILIES,
    FULL,
    QUICK,
    RATE,
    RATE_SEED,
    START,
    TASKS,
    Sizes,
    family_of,
    start_config,
    variant_config,
)
from longshort.files import write_json
from longshort.train import ConfigError, TrainConfig
from longshort.train.sweeps.processes import RunFailed, run_all

PROCESS = "experiments.soft_thinking.cell"
ON_CUDA: dict[str, dict[str, Any]] = {"run": {"precision": "bf16"}, "model": {"backend": "triton"}}


@dataclass(frozen=True)
class Cell:
    """One training and what is read of it."""

    config: TrainConfig

    @property
    def out(self) -> Path:
        return Path(self.config.run.out)

    @property
    def is_done(self) -> bool:
        """Whether its results are there, with these settings, and for a start also its weights."""
        found = read_json(self.out / CELL) if (self.out / CELL).is_file() else {}
        is_start = self.config.rl.start is None
        there = bool(found) and (not is_start or (self.out / WEIGHTS).is_dir())
        return there and found["settings"] == kept_settings(self.config)


def measure(options: Options, message: Message) -> None:
    """Run what is left of the chosen variants, and of what they need."""
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    plan = Plan(options)
    remember_command(options.out)
    write_json(options.out / SIZES, {"quick": options.quick})
    for name, cells in (("starts", plan.starts), ("learning rates", plan.rate_cells), ("variants", plan.variant_cells)):
        wanted = cells()
        left = [cell for cell in wanted if not cell.is_done]
        message(f"{name}: {len(wanted)} cells, {len(left)} to do, {options.parallel} at a time, in {options.out}")
        if left and not _run(left, options, until, message):
            message("stopped; run the same command again to resume")
            return


def _run(cells: Sequence[Cell], options: Options, until: float, message: Message) -> bool:
    """Run these cells side by side; False if time or the user ended it."""
    failures: list[RunFailed] = []

    def failed(failure: RunFailed) -> None:
        failures.append(failure)
        message(str(failure))

    jobs = min(options.parallel, len(cells))
    threads = 1 if on_cuda(options.device) else None
    run_all([cell.config for cell in cells], jobs=jobs, threads=threads, module=PROCESS, until=until, failed=failed)
    if failures:
        raise RunFailed(f"{len(failures)} of {len(cells)} cells failed; the first: {failures[0]}")
    return all(cell.is_done for cell in cells)


class Plan:
    """The cells of a call."""

    def __init__(self, options: Options) -> None:
        self._out, self._seeds = options.out, options.seeds
        self._sizes: Sizes = QUICK if options.quick else FULL
        if options.steps is not None:
            self._sizes = replace(self._sizes, steps=options.steps)
        if RATE_SEED in options.seeds:
            raise ConfigError(f"--seeds must not hold {RATE_SEED}, on which learning rates are chosen")
        every = [f"{task}-{variant}" for task, variants in TASKS.items() for variant in variants]
        self._names = [tuple(name.split("-", 1)) for name in chosen(every, options.variants or ("*",))]
        shared = ON_CUDA if on_cuda(options.device) else {}
        self._shared = {name: dict(keys) for name, keys in shared.items()}
        self._shared["run"] = self._shared.get("run", {}) | {"device": options.device}
        self._overrides = options.overrides

    def starts(self) -> list[Cell]:
        """The supervised runs, which every cell of their task and seed starts with."""
        return [self._start(task, seed) for task in self._tasks() for seed in (RATE_SEED, *self._seeds)]

    def rate_cells(self) -> list[Cell]:
        """Each family with each learning rate, where the family has a variant on the task."""
        return [self._rate_cell(task, family, rate) for task, family in self._families() for rate in self._sizes.rates]

    def variant_cells(self) -> list[Cell]:
        """The variants, one seed after another, each with the learning rate of its family."""
        rates = {pair: self._chosen(*pair) for pair in self._families()}
        return [
            self._variant_cell(task, variant, rates[task, family_of(variant)], seed)
            for seed in self._seeds
            for task, variant in self._names
        ]

    def _tasks(self) -> list[str]:
        return list(dict.fromkeys(task for task, _ in self._names))

    def _families(self) -> list[tuple[str, str]]:
        wanted = {(task, family_of(variant)) for task, variant in self._names}
        return [(task, family) for task in TASKS for family in FAMILIES if (task, family) in wanted]

    def _start(self, task: str, seed: int) -> Cell:
        return self._cell(start_config(task, self._sizes, self._shared), f"{task}-{START}", seed)

    def _rate_cell(self, task: str, family: str, rate: float) -> Cell:
        config = variant_config(task, family, rate, self._sizes, self._shared)
        return self._cell(self._from_start(config, task, RATE_SEED), f"{task}-{RATE}-{family}-{rate:g}", RATE_SEED)

    def _variant_cell(self, task: str, variant: str, rate: float, seed: int) -> Cell:
        config = variant_config(task, variant, rate, self._sizes, self._shared)
        return self._cell(self._from_start(config, task, seed), f"{task}-{variant}", seed)

    def _cell(self, config: TrainConfig, name: str, seed: int) -> Cell:
        config = config.with_overrides(self._overrides)
        run = replace(config.run, variant=name, seed=seed, out=str(self._out / f"{name}-seed{seed}"))
        return Cell(replace(config, run=run))

    def _from_start(self, config: TrainConfig, task: str, seed: int) -> TrainConfig:
        start = self._start(task, seed).out / WEIGHTS
        return replace(config, rl=replace(config.rl, start=str(start)))

    def _chosen(self, task: str, family: str) -> float:
        cells = {rate: self._rate_cell(task, family, rate).out for rate in self._sizes.rates}
        return best_rate({rate: right_share(read_json(out / CELL), self._sizes) for rate, out in cells.items()})


def right_share(found: Mapping[str, Any], sizes: Sizes) -> float:
    """The share of right validation samples of a cell that tries a learning rate, read in its own way."""
    if found["diverged"]:
        return 0.0
    (counts,) = found["readings"].values()
    return statistics.fmean(counted(counts)) / sizes.rate_samples


def best_rate(shares: Mapping[float, float]) -> float:
    """The learning rate with the largest share; of equal ones the smallest.

    >>> best_rate({1e-4: 0.5, 1e-3: 0.6, 1e-2: 0.6})
    0.001
    """
    return max(sorted(shares), key=lambda rate: shares[rate])


def cells_in(folder: Path) -> Iterable[tuple[str, str, int, dict[str, Any]]]:
    """Task, variant, seed and results of each finished cell of a folder."""
    for path in sorted(folder.glob(f"*/{CELL}")):
        found = read_json(path)
        run = found["settings"]["run"]
        task, variant = run["variant"].split("-", 1)
        yield task, variant, int(run["seed"]), found
