"""Processes that work together in a test: started once, they run one function after another.

A function gets the group of the first `size` of them, which is all of `torch.distributed` while it runs, then the
arguments; it must be one that can be imported.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LARGEST = 4
SECONDS = 120


def forkserver() -> Any:
    """A context whose processes start at once: forked from one server, which imports torch for all."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "longshort.train.checkpoints.sharded",
            "longshort.train.trainer",
            "torch._dynamo",
            "torch.distributed.fsdp",
            "torch.distributed.run",
            "pytest",
        ]
    )
    return context


class RankDied(Exception):
    """A rank ended without an answer; the message has its exit code."""


class Ranks:
    """Up to four processes, joined by gloo. They end with this one, however it ends."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._folder = Path()
        self._size = self._meetings = 0

    def run(self, function: Callable[..., Any], *arguments: Any, size: int) -> list[Any]:
        """What function(group, *arguments) returns on each rank; raises what a rank raises."""
        if not self._processes:
            self._start()
        if size != self._size:
            self._size, self._meetings = size, self._meetings + 1
        pipes = self._pipes[:size]
        for pipe in pipes:
            pipe.send((function, arguments, size, self._folder / str(self._meetings)))
        answers: dict[Connection, tuple[bool, Any]] = {}
        failures: list[Any] = []
        while len(answers) < size:
            ready = wait([pipe for pipe in pipes if pipe not in answers], 5 if failures else SECONDS)
            if not ready:  # the others wait for the one that failed
                self.stop()
                break
            answers |= {pipe: self._answer(pipe) for pipe in pipes if pipe in ready}
            failures = sorted(
                (x for failed, x in answers.values() if failed), key=lambda x: not isinstance(x, RankDied)
            )
        if failures:
            if isinstance(failures[0], RankDied):
                self.stop()
            raise failures[0]
        if len(answers) < size:
            raise TimeoutError(f"only {len(answers)} of {size} ranks answered in {SECONDS} s")
        return [answers[pipe][1] for pipe in pipes]

    def _answer(self, pipe: Connection) -> tuple[bool, Any]:
        try:
            return pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes[self._pipes.index(pipe)]
            process.join()
            return True, RankDied(f"rank {self._pipes.index(pipe)} ended with {process.exitcode}")

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._pipes, self._processes, self._size = [], [], 0

    def _start(self) -> None:
        context = forkserver()
        self._folder = Path(tempfile.mkdtemp())
        for rank in range(LARGEST):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process is the end of the pipe
            self._pipes.append(ours)
            self._processes.append(process)


def _serve(rank: int, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    joined = None
    while True:
        function, arguments, size, meeting = pipe.recv()
        try:
            if meeting != joined:
                if dist.is_initialized():
                    dist.destroy_process_group()
                limit = timedelta(seconds=SECONDS)
                dist.init_process_group(
                    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=limit
                )
                joined = meeting
            pipe.send((False, function(dist.group.WORLD, *arguments)))
        except Exception as failure:
            failure.add_note(f"on rank {rank}:\n{traceback.format_exc()}")
            pipe.send((True, failure))


def _end_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
