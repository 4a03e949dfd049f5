"""Shared by experiments that measure something themselves, in one process, instead of training a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.harness import machine
from experiments.engine.measures import read_json
from experiments.engine.records import Options
from experiments.engine.sweep import remember_command
from longshort.train import ConfigError

__all__ = ["keep_seeds", "machine", "on_one_thread"]


def keep_seeds(path: Path, options: Options) -> None:
    """Raise if the results there have seeds that this call does not measure again: it would write over them."""
    found = read_json(path) if path.is_file() else {}
    seeds = found.get("seeds", found.get("settings", {}).get("seeds", []))
    if not set(seeds) <= set(options.seeds):
        there, every = (",".join(map(str, sorted(numbers))) for numbers in (seeds, {*seeds, *options.seeds}))
        raise ConfigError(
            f"{path}: holds seeds {there}, which this call would replace; measure them together, with --seeds {every}, "
            "or choose another folder with --out"
        )


@contextmanager
def on_one_thread(options: Options) -> Iterator[Callable[[], float]]:
    """Measure on the CPU with one thread: record the command, and yield a clock of the seconds since the start.

    The matrices are small: more threads would wait for each other, and two processes use two cores better.
    """
    remember_command(options.out)
    threads, begun = torch.get_num_threads(), time.perf_counter()
    torch.set_num_threads(1)
    try:
        yield lambda: time.perf_counter() - begun
    finally:
        torch.set_num_threads(threads)
