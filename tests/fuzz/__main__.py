"""`python -m tests.fuzz`, which `make fuzz` runs: every backend and cache against the reference, in drawn cases.

The same command again resumes. `--only 17` repeats one case and shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import deque
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from .record import read_rows, record, versions
from .worker import PER_FAMILY, Worker, answer

SHARE_ON_CPU = 0.4
"""Of the cases, with --device both."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many, on all devices together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda", "both"), help="cpu, unless there is a GPU: then both")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz.json"), help="the record; OUT.rows is kept beside")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after this; resume later")
    parser.add_argument("--only", type=int, metavar="CASE", help="check this case alone and show it")
    options = parser.parse_args(arguments)
    if options.only is not None:
        return show(options.device or "cpu", options.seed, options.only)
    if min(options.cases, options.jobs) < 1:
        parser.error("--cases and --jobs must be at least 1")
    return fuzz(options, devices_of(options))


def devices_of(options: argparse.Namespace) -> dict[str, int]:
    """How many cases go to each device."""
    if options.device is None:
        import torch

        options.device = "both" if torch.cuda.is_available() else "cpu"
    if options.device != "both":
        return {options.device: options.cases}
    on_cpu = int(SHARE_ON_CPU * options.cases)
    return {"cpu": on_cpu, "cuda": options.cases - on_cpu}


def fuzz(options: argparse.Namespace, devices: dict[str, int]) -> int:
    """Check what an earlier run has not, and write the record; returns 1 if a case failed or is left."""
    started, held = time.monotonic(), Path(f"{options.out}.rows")
    held.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for row in read_rows(held) if row.get("seed") == options.seed]
    done = {(row["device"], row["case"]) for row in rows}
    rows = [row for row in rows if row["case"] < devices.get(row["device"], 0)]
    todo = {device: deque(_families(device, cases, done)) for device, cases in devices.items()}
    if rows:
        print(f"resuming after {len(rows):,} cases of {held}", flush=True)
    with held.open("a", encoding="utf-8") as file:
        for row in run(todo, options, started, total=sum(devices.values()), before=len(rows)):
            file.write(json.dumps(row | {"seed": options.seed}) + "\n")
            file.flush()
            rows.append(row)
    seconds = sum(row.get("seconds", 0) for row in rows)
    about = {"command": f"python -m tests.fuzz --cases {options.cases} --seed {options.seed} --device {options.device}"}
    about |= {"seed": options.seed, "asked for": sum(devices.values()), "seconds of all processes": round(seconds)}
    about |= versions(devices)
    found = record(rows, about)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for failure in found["failures"][:20]:
        print(f"FAILED {failure['repeat']}\n    {failure['what']}")
    left = about["asked for"] - len(rows)
    print(f"{len(rows):,} cases, {len(found['failures'])} failures, {time.monotonic() - started:.0f} s; {left:,} left")
    print(f"wrote {options.out}")
    return bool(found["failures"] or left)


def _families(device: str, cases: int, done: set[tuple[str, int]]) -> list[list[int]]:
    families = []
    for first in range(0, cases, PER_FAMILY):
        numbers = range(first, min(first + PER_FAMILY, cases))
        if left := [number for number in numbers if (device, number) not in done]:
            families.append(left)
    return families


def run(
    todo: dict[str, deque[list[int]]], options: argparse.Namespace, started: float, *, total: int, before: int
) -> Any:
    """Rows as they come. A process that ends or hangs loses the case it had; another takes the rest of its family."""
    workers: list[Worker] = []
    said, count, failures = time.monotonic(), before, 0
    try:
        while True:
            in_time = time.monotonic() - started < 60 * options.minutes
            for device, families in _by_need(todo, workers) if in_time else ():
                idle = next((worker for worker in workers if worker.device == device and not worker.left), None)
                if idle is None:
                    spare = next((worker for worker in workers if not worker.left), None)
                    if spare is not None:
                        spare.stop()
                        workers.remove(spare)
                    elif len(workers) >= options.jobs:
                        continue
                    idle = Worker(device, options.seed)
                    workers.append(idle)
                idle.give(families.popleft())
            busy = {worker.connection: worker for worker in workers if worker.left}
            if not busy:
                return
            ready: list[Any] = wait(list(busy), timeout=5)
            lost = [worker for worker in busy.values() if worker.hangs and worker.connection not in ready]
            for worker in [busy[connection] for connection in ready] + lost:
                row = worker.lost("no answer in time") if worker in lost else worker.receive()
                if not worker.process.is_alive() and (worker in lost or not worker.connection.poll()):
                    workers.remove(worker)
                    if worker.left:
                        todo[worker.device].appendleft(worker.left)
                count, failures = count + 1, failures + bool(row["failure"])
                yield row
            if time.monotonic() - said > 15:
                said = time.monotonic()
                print(f"{count:,} of {total:,} cases, {failures} failures, {said - started:.0f} s", flush=True)
    finally:
        for worker in workers:
            worker.stop()


def _by_need(todo: dict[str, deque[list[int]]], workers: list[Worker]) -> Any:
    """Families to begin: those of the device with the most left per process come first."""
    for _ in range(sum(map(len, todo.values()))):
        busy = {device: sum(worker.device == device and bool(worker.left) for worker in workers) for device in todo}
        left = [device for device, families in todo.items() if families]
        if not left:
            return
        device = max(left, key=lambda device: len(todo[device]) / (1 + busy[device]))
        before = len(todo[device])
        yield device, todo[device]
        if len(todo[device]) == before:  # no process is free
            return


def show(device: str, seed: int, number: int) -> int:
    """Check one case and say what it is and what was found."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from .draw import drawn

    print(drawn(seed, number, device))
    row = answer(device, seed, number)
    for way, (share, error, tensor) in row["found"].items():
        print(f"{way}: {tensor} off by {error:.2e}, {share:.3f} of what is allowed")
    for why in row.get("refused", {}).values():
        print(why)
    print(row["failure"] or "agrees with the reference")
    return bool(row["failure"])


if __name__ == "__main__":
    sys.exit(main())
