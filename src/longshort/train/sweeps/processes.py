"""Trains several runs at once, each in its own process, and follows their progress.

Each process takes one configuration file: `python -m longshort.train.sweeps.processes RUN/config.json`. Its output goes
to `RUN/output.txt` and its progress to `RUN/metrics.jsonl`.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from longshort.files import write_json
from longshort.runs import Reader, finished
from longshort.train.divergence import TrainingStopped
from longshort.train.folder import CONFIG, OUTPUT
from longshort.train.identity import check_folder_is_free
from longshort.train.machine.signals import told_to_stop
from longshort.train.settings.config import TrainConfig
from longshort.train.trainer import train

MODULE = "longshort.train.sweeps.processes"
"""The module that a process runs."""


class RunFailed(RuntimeError):
    """A training process ended with an error; the message quotes its last line of output."""


class Running(Protocol):
    """A run that was started: a process here, or a job elsewhere."""

    def poll(self) -> int | None:
        """The exit code; None while it runs or waits to run."""

    def terminate(self) -> None:
        """Let it save and end."""

    def wait(self) -> int: ...


def run_all(
    configs: Sequence[TrainConfig],
    *,
    jobs: int,
    threads: int | None = None,
    watch: Callable[[dict[str, Reader]], None] = lambda readers: None,
    poll_seconds: float = 0.5,
    module: str = MODULE,
    until: float = math.inf,
    grace: float = 0.0,
    failed: Callable[[RunFailed], None] | None = None,
    start: Callable[[TrainConfig], Running] | None = None,
) -> bool:
    """Train all, `jobs` at a time with `threads` CPU threads each; True if all finished, False if interrupted.

    More threads than cores make every run several times slower, so by default the cores are divided among the runs. At
    the time `until` (by time.monotonic), or when this process gets SIGTERM, the runs save and end; one whose training
    is over by `until`, but not what its process does after it, has `grace` seconds more. If `failed` is given, a
    failing run is reported to it and does not stop the others. No run outlives the call. If the folder of any of them
    holds something else, another run included, none starts and nothing is written. `start` starts runs elsewhere than
    in processes of this machine.
    """
    for config in configs:
        check_folder_is_free(config)
    threads = threads or max(1, (os.cpu_count() or 1) // jobs)
    waiting, running, told = list(configs), dict[str, Running](), set[str]()
    readers = {config.run.out: Reader(Path(config.run.out)) for config in configs}
    steps = {config.run.out: config.run.steps for config in configs}
    terminated = threading.Event()  # by default SIGTERM would end this process and orphan its runs
    with told_to_stop(terminated.set, (signal.SIGTERM,)), _ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                config = waiting.pop(0)
                running[config.run.out] = start(config) if start else launch(write_config(config), threads, module)
            time.sleep(poll_seconds)
            for reader in readers.values():
                reader.update()
            watch(readers)
            ended = {out: code for out, process in running.items() if (code := process.poll()) is not None}
            for out, code in ended.items():
                del running[out]
                if out not in told:  # a run stopped before its handler is set exits with the signal's code
                    _check_end(out, code, failed)
            late = math.inf if terminated.is_set() else time.monotonic() - until
            if late >= 0:
                waiting.clear()
            for out in running.keys() - told:
                if late >= (grace if finished(readers[out].end, steps[out]) else 0):
                    told.add(out)
                    running[out].terminate()  # it saves and ends
    for reader in readers.values():
        reader.update()  # the final records of runs that ended since the last update
    return not waiting and all(finished(readers[config.run.out].end, config.run.steps) for config in configs)


@contextmanager
def _ended(running: dict[str, Running]) -> Iterator[None]:
    """However the block ends, let the runs save and end first. A keyboard interrupt is not an error."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def write_config(config: TrainConfig) -> Path:
    """Write the file that the run's process reads; returns the run's folder."""
    out = Path(config.run.out)
    write_json(out / CONFIG, config.to_dict())
    return out


def launch(out: Path, threads: int, module: str = MODULE, **options: Any) -> subprocess.Popen[bytes]:
    """Start the process of a run whose configuration is written; `options` are those of `Popen`."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    with (out / OUTPUT).open("ab") as output:
        command = [sys.executable, "-m", module, str(out / CONFIG)]
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, **options)


def _check_end(out: str, code: int, failed: Callable[[RunFailed], None] | None) -> None:
    if code:
        failure = RunFailed(f"the run {out} failed: {_last_words(Path(out), code)}")
        if failed is None:
            raise failure
        failed(failure)


def _last_words(out: Path, code: int) -> str:
    if code < 0:  # its output does not say why
        return f"{signal.Signals(-code).name} ended it"
    words = (out / OUTPUT).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return re.sub(r"^(\w+\.)+\w+: ", "", words[-1]) if words else f"exit code {code}"  # not the exception's class


def named_config() -> TrainConfig:
    """The configuration in the file named on this process's command line."""
    return TrainConfig.from_dict(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


def main() -> None:
    """Train. Divergence is a result, not an error; the log records it."""
    try:
        train(named_config())
    except TrainingStopped as stopped:
        print(stopped)


if __name__ == "__main__":
    main()
