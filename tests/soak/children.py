"""Runs commands in child processes that start at once: forked from one that has loaded torch but never used it."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import faults
from .faults import Fault

LIMIT = 240
"""Seconds after which a command counts as hanging."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    """Its exit code; for a signal, the negative number."""
    out: str
    err: str
    hit: str = ""
    """The file operation that a fault hit: category, operation, path."""
    seen: int = 0
    """How many operations there were, if it was not killed."""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def crashed(self) -> bool:
        """Whether it ended other than in success or a one-line error."""
        errors = sum(line.startswith("error: ") for line in self.err.splitlines())
        return self.code not in (0, 1) or "Traceback" in self.err + self.out or errors != self.code

    @property
    def said(self) -> str:
        return (self.err.strip() or self.out.strip()).splitlines()[-1] if self.err.strip() or self.out.strip() else ""


def longshort(
    arguments: Sequence[str], folder: Path, *, fault: Fault | None = None, kill_after: float | None = None
) -> Outcome:
    """Run `longshort ARGUMENTS` in `folder`, optionally with a fault, or killed from outside after some seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as hit:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _become(list(arguments), folder, fault, hit.fileno())
        if kill_after is not None:
            _wait(child, kill_after)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err, hit):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    *hits, seen = texts.pop().split("\n") if fault is not None and code >= 0 else (texts.pop().strip(), "0")
    return Outcome(code, *texts, hit="".join(hits), seen=int(seen))


def _become(arguments: list[str], folder: Path, fault: Fault | None, report: int) -> None:
    """Run the command in this process and exit as it does; what a fault hits is written to the file `report`."""
    code = 70
    try:
        signal.alarm(LIMIT)
        os.chdir(folder)
        sys.argv = ["longshort", *arguments]
        if fault is not None:
            faults.arm(fault, folder, report)
        from longshort.cli import app

        app(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        gc.collect()  # brings out errors of files that were left open
        sys.stdout.flush()
        sys.stderr.flush()
        if fault is not None:
            os.write(report, str(faults.seen()).encode())
        os._exit(code)


def _wait(child: int, seconds: float) -> None:
    """Wait until the time is up or the child has ended, without reaping it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.005)


def spread(cases: Sequence[Any], work: Callable[[Any], dict[str, Any]], jobs: int) -> Iterator[dict[str, Any]]:
    """The result of `work` for each case, as it finishes, from `jobs` processes."""
    readers = {}
    for job in range(min(jobs, len(cases))):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _serve(cases[job::jobs], work, writer)
        os.close(writer)
        readers[child] = os.fdopen(reader)
    import selectors

    with selectors.DefaultSelector() as selector:
        for child, file in readers.items():
            selector.register(file, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                if line := key.fileobj.readline():  # type: ignore[union-attr]
                    yield json.loads(line)
                    continue
                selector.unregister(key.fileobj)
                if os.waitpid(key.data, 0)[1]:
                    raise RuntimeError("a process of the soak itself failed; its output is above")


def _serve(cases: Sequence[Any], work: Callable[[Any], dict[str, Any]], writer: int) -> None:
    code = 1
    try:
        for case in cases:
            os.write(writer, json.dumps(work(case)).encode() + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
