"""Shared by experiments that measure something themselves, in one process, instead of training a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.harness import machine
from experiments.engine.records import Options
from experiments.engine.sweep import remember_command

__all__ = ["machine", "on_one_thread"]


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
