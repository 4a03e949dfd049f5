"""Processes that work together in a test: started once, they run one function after another.

A function gets the group of the first `size` of them, then the arguments; it must be one that can be imported.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

SECONDS = 120


class Ranks:
    """Up to `largest` processes, which are the world, joined by gloo."""

    def __init__(self, largest: int = 4) -> None:
        self._largest = largest
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
        context.set_forkserver_preload(
            ["longshort.ops.sharded", "longshort.train.trainer", "torch.distributed.fsdp", "torch._dynamo", "pytest"]
        )
        self._folder = tempfile.mkdtemp()
        for rank in range(self._largest):
            ours, theirs = context.Pipe()
            arguments = (rank, self._largest, self._folder, theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)


def _serve(rank: int, world: int, folder: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=limit)
    groups = [dist.new_group(list(range(size)), timeout=limit) for size in range(1, world + 1)]
    while True:
        function, arguments, size = pipe.recv()
        try:
            pipe.send((False, function(groups[size - 1], *arguments)))
        except Exception as failure:
            pipe.send((True, failure))


def _end_with(parent: int) -> None:
    """End this process, which may be waiting for others, soon after its parent, which ends when the tests do."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
