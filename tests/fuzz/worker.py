"""The processes that check cases: each holds one device and takes families of cases one after another.

Nothing here is imported by the main process but `Worker`: whether Triton's kernels are interpreted is decided when
torch's packages are first imported.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

PER_FAMILY = 25
"""Cases of a family, which share compiled kernels; a process is given one family at once."""
SLOWEST = 300.0
"""Seconds after which a case counts as hanging."""


class Worker:
    """A process that checks cases on one device."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, device, seed), daemon=True)
        self.process.start()
        theirs.close()
        self.left: list[int] = []
        """Numbers that it has been given and has not answered, in order."""
        self.since = time.monotonic()

    def give(self, numbers: Sequence[int]) -> None:
        self.left, self.since = list(numbers), time.monotonic()
        self.connection.send(self.left)

    def receive(self) -> dict[str, Any]:
        """The row of the next case; one that says so if the process has ended or hangs."""
        try:
            row = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(10)
            return self.lost(f"the process ended with exit code {self.process.exitcode}")
        self.left.remove(row["case"])
        self.since = time.monotonic()
        return row

    def lost(self, why: str) -> dict[str, Any]:
        """The row of the case that it has not answered."""
        self.stop()
        return {"device": self.device, "case": self.left.pop(0), "tags": [], "found": {}, "failure": why}

    @property
    def hangs(self) -> bool:
        return bool(self.left) and time.monotonic() - self.since > SLOWEST

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()


def serve(connection: Connection, device: str, seed: int) -> None:
    """Answer each list of numbers with one row per number; end after an error that leaves the device unusable."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # numpy's, in Triton's interpreter, and torch's about half precision
    while True:
        try:
            numbers = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        for number in numbers:
            row = answer(device, seed, number)
            connection.send(row)
            if row["failure"] and "CUDA error" in row["failure"]:
                return


def answer(device: str, seed: int, number: int) -> dict[str, Any]:
    """Check a case: a row of what was found, for the record."""
    from .check import check
    from .draw import drawn, tags

    started = time.perf_counter()
    row: dict[str, Any] = {"device": device, "case": number, "tags": [], "found": {}, "failure": None}
    try:
        case = drawn(seed, number, device)
        row["tags"] = tags(case)
        row["dtype"] = str(case.case.dtype if hasattr(case, "case") else case.dtype).removeprefix("torch.")
        found = check(case)
        row["refused"] = {way: why for way, why in found.items() if isinstance(why, str)}
        row["found"] = {way: list(finding) for way, finding in found.items() if way not in row["refused"]}
        wrong = [f"{way}: {tensor} off by {error:.2e}, {share:.2f} of what is allowed"
                 for way, (share, error, tensor) in row["found"].items() if not share <= 1]  # fmt: skip
        row["failure"] = "; ".join(wrong) or None
    except Exception as error:  # whatever goes wrong is what the run is for
        last = traceback.extract_tb(error.__traceback__)[-1]
        row["failure"] = f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})"
    row["seconds"] = round(time.perf_counter() - started, 3)
    return row
