"""Runs of two processes under torchrun's agent, one of which is killed with SIGKILL, many times.

The agent restarts both. What is left must equal a run that was never killed, and no kill may cost more than the steps
between two saves.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longshort.runs.log import METRICS, read_log
from tests.elastic import launch

from . import faults, subject
from .faults import KILL, Fault

KILLS_PER_RUN = 10
LIMIT = 300
"""Seconds after which a run counts as hanging."""
SETTINGS = {
    "plain, DDP": ("plain", []),
    "plain, sharded": ("plain", ["parallel.dp_shard=2"]),
    "skipping, DDP": ("skipping", []),
    "skipping, sharded": ("skipping", ["parallel.dp_shard=2"]),
    "rolling back, sharded": ("rolling back", ["parallel.dp_shard=2"]),
}
NAMES = {
    "s": "while saving",
    "l": "while writing the log",
    "p": "while removing old checkpoints",
    "t": "while training",
    "b": "while starting",
}
_MOMENTS = {"s": 35, "l": 5, "p": 10, "t": 35, "b": 15}
"""Percentage of kills aimed at each moment."""
_REACH = {"s": 40, "l": 12, "p": 12}
"""The kill comes within this many file operations of its kind."""
_KILLS, _OUTPUT = "kills", "output.txt"
"""In the folder of a run: a file for each kill, with what was hit, and what all processes wrote."""


def setting(number: int) -> str:
    """The setting of a run; the settings take turns."""
    return list(SETTINGS)[number % len(SETTINGS)]


def references(base: Path, work: Path, runs: Iterable[int]) -> dict[str, dict[str, Any]]:
    """For each setting used by these runs, the folder of the undisturbed run and its seconds."""
    made = {}
    for name in {setting(number) for number in runs}:
        folder = _prepared(base, work / f"undisturbed-{re.sub('[ ,]+', '-', name)}", name)
        problem, seconds = _run(folder, name, seed="", count=0)
        if problem:
            raise RuntimeError(f"an undisturbed run failed: {problem}")
        made[name] = {"folder": folder, "seconds": seconds}
    return made


def one_run(
    number: int, *, base: Path, references: dict[str, Any], work: Path, seed: int, count: int = KILLS_PER_RUN
) -> dict[str, Any]:
    """Kill processes of one run `count` times and compare its end; if it finishes earlier, another begins."""
    name = setting(number)
    row: dict[str, Any] = {"case": f"restart:{number}", "setting": name, "kills": {}, "ranks": [0, 0], "restarts": 0}
    row |= {"runs": 0, "lost_steps": [], "seconds": 0.0, "undisturbed_seconds": 0.0, "problem": ""}
    hits: Counter[str] = Counter()
    while sum(hits.values()) < count and not row["problem"]:
        folder = _prepared(base, work / f"restart-{number}-{row['runs']}", name)
        problem, seconds = _run(folder, name, f"{seed}/restart/{number}/{row['runs']}", count - sum(hits.values()))
        attempts, lost = _attempts((folder / _OUTPUT).read_text(errors="replace"))
        for path in _killed(folder):
            hits[NAMES[path.read_text()[0]]] += 1
            row["ranks"][int(path.name[-1])] += 1
        row["restarts"] += attempts - 1
        row["lost_steps"] += lost
        row["seconds"] += seconds
        row["undisturbed_seconds"] += references[name]["seconds"]
        row["runs"] += 1
        row["problem"] = problem or subject.difference(folder / subject.RUN, references[name]["folder"] / subject.RUN)
        # the next save waits for the one that is being written, so a kill never costs two intervals
        if not row["problem"] and max(lost, default=0) >= 2 * subject.SAVE_EVERY:
            row["problem"] = f"a kill cost {max(lost)} steps, with {subject.SAVE_EVERY} between saves"
    row["kills"] = dict(hits)
    return row | {name: round(row[name], 1) for name in ("seconds", "undisturbed_seconds")}


def _prepared(base: Path, folder: Path, name: str) -> Path:
    subject.with_run(subject.copy(base, folder), SETTINGS[name][0])
    (folder / _KILLS).mkdir()
    return folder


def _run(folder: Path, name: str, seed: str, count: int) -> tuple[str, float]:
    """Run the agent until its run has finished; returns what was wrong, in words, and the seconds."""
    started = time.monotonic()
    agent = os.fork()
    if agent == 0:
        _become_agent(folder, [*subject.TRAIN, *SETTINGS[name][1]], seed, count)
    ended = os.pidfd_open(agent)
    if not select.select([ended], [], [], LIMIT)[0]:
        os.killpg(agent, signal.SIGKILL)
    os.close(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    how = f"hung for {LIMIT} s" if code == -signal.SIGKILL else f"ended with {code}"
    return f"torchrun {how}; see {folder / _OUTPUT}" if code else "", time.monotonic() - started


def _become_agent(folder: Path, arguments: list[str], seed: str, count: int) -> None:
    code = 1
    try:
        os.setsid()  # so that all its processes can be ended together
        os.chdir(folder)
        output = os.open(_OUTPUT, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        launch(_work, folder, arguments, seed, count, restarts=3 * count)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(folder: Path, arguments: list[str], seed: str, count: int) -> None:
    """`longshort ARGUMENTS` in one of the processes, with a kill to come if it is this one's turn."""
    attempt, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    if rank == 0:
        records = read_log(Path(subject.RUN)) if Path(subject.RUN, METRICS).exists() else []
        reached = max((record["step"] for record in records if record["kind"] == "train"), default=0)
        print(f"\nattempt {attempt} after step {reached}", flush=True)
    if len(_killed(folder)) < count:
        _aim(folder, rank, attempt, random.Random(f"{seed}/{attempt}"), sharded=len(arguments) > len(subject.TRAIN))
    sys.argv = ["longshort", *arguments]
    from longshort.cli import app

    app(arguments)


def _aim(folder: Path, rank: int, attempt: int, draw: random.Random, *, sharded: bool) -> None:
    """Both processes draw the same: which of them is killed, and when."""
    chosen = draw.randrange(2)
    moment = draw.choices(list(_MOMENTS), list(_MOMENTS.values()))[0]
    at, seconds = draw.random(), draw.random()
    if chosen == 1 and (moment in "lp" or (moment == "s" and not sharded)):
        moment = "t"  # that process writes no such files
    if chosen != rank:
        return
    report = os.open(folder / _KILLS / f"{attempt:03d}-{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    if moment in _REACH:
        faults.arm(Fault(KILL, 1 + int(at * _REACH[moment]), moment), folder, report)
    elif moment == "t":
        _kill_later(report, moment, 0.3 * seconds, log=Path(subject.RUN, METRICS))
    else:
        _kill_later(report, moment, seconds)


def _kill_later(report: int, moment: str, seconds: float, log: Path | None = None) -> None:
    """Let another process kill this one after some seconds, counted from when the log grows, if there is one."""
    victim = os.pidfd_open(os.getpid())
    if os.fork():
        return
    before = _size(log)
    while log is not None and _size(log) <= before and not select.select([victim], [], [], 0.005)[0]:
        pass
    if not select.select([victim], [], [], seconds)[0]:
        os.write(report, moment.encode())
        signal.pidfd_send_signal(victim, signal.SIGKILL)
    os._exit(0)


def _size(log: Path | None) -> int:
    return log.stat().st_size if log is not None and log.exists() else 0


def _killed(folder: Path) -> list[Path]:
    """The reports of kills so far."""
    return [path for path in sorted((folder / _KILLS).iterdir()) if path.stat().st_size]


def _attempts(output: str) -> tuple[int, list[int]]:
    """How often the processes were started, and how many recorded steps were lost each time that training went on."""
    _, *parts = output.split("\nattempt ")
    lost = []
    for part in parts[1:]:
        reached = re.match(r"\d+ after step (\d+)", part)
        resumed = re.search(r"^resuming .* at step (\d+)$", part, re.MULTILINE)
        assert reached is not None, part[:100]
        if resumed is not None or "\nstep 1/" in part:
            lost.append(int(reached[1]) - (0 if resumed is None else int(resumed[1])))
    return len(parts), lost
