"""Processes that work together in a test: started once, they run one function after another.

A function gets the group of the first `size` of them, then the arguments; it must be one that can be imported.
"""

from __future__ import annotations

import multiprocessing as mp
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

LARGEST = 4
SECONDS = 120


class Ranks:
    """Up to four processes, joined by gloo."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._folder = ""

    def run(self, function: Callable[..., Any], *arguments: Any, size: int) -> list[Any]:
        """What function(group, *arguments) returns on each rank; raises what a rank raises."""
        if not self._processes:
            self._start()
        pipes = self._pipes[:size]
        for pipe in pipes:
            pipe.send((function, arguments, size))
        answers: dict[Connection, tuple[bool, Any]] = {}
        failures: list[Any] = []
        while len(answers) < size:
            ready = wait([pipe for pipe in pipes if pipe not in answers], 5 if failures else SECONDS)
            if not ready:  # the others wait for the one that failed
                self.stop()
                break
            answers |= {pipe: pipe.recv() for pipe in pipes if pipe in ready}
            failures = [answer for failed, answer in answers.values() if failed]
        if failures:
            raise failures[0]
        if len(answers) < size:
            raise TimeoutError(f"only {len(answers)} of {size} ranks answered in {SECONDS} s")
        return [answers[pipe][1] for pipe in pipes]

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._pipes, self._processes = [], []

    def _start(self) -> None:
        context = mp.get_context("forkserver")  # imports torch once for all
        context.set_forkserver_preload(["longshort.ops.sharded", "longshort.model"])
        self._folder = tempfile.mkdtemp()
        for rank in range(LARGEST):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._folder, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)


def _serve(rank: int, folder: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=LARGEST, timeout=limit)
    groups = [dist.new_group(list(range(size)), timeout=limit) for size in range(1, LARGEST + 1)]
    while True:
        function, arguments, size = pipe.recv()
        try:
            pipe.send((False, function(groups[size - 1], *arguments)))
        except Exception as failure:
            pipe.send((True, failure))
