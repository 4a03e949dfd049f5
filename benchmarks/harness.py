"""What all benchmarks share: entrants are checked before they are timed, take turns, and results are written as they
come.

Machines are noisy: entrants take turns within a round, a result is the median over rounds, and a ratio the median of
the ratios within a round. An entrant that is wrong ends the benchmark; one that cannot run gets a row that says why.
"""

from __future__ import annotations

import json
import math
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import Page, Results
from benchmarks.timing import Sample, free
from longshort.files import write_json
from longshort.train.identity import git_revision

OURS = "longshort"
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
"""What is measured on a device."""
UNFINISHED = "unfinished"
"""Key of the finished pieces in results that are not complete yet."""
LEFT_OUT = "left out: the time was up"
_AND = "\n    "
"""Between the commands of results that several commands gave."""


class WrongResult(ValueError):
    """An implementation does not compute what it claims."""


def require(device: str) -> None:
    """Raise a ValueError if there is no such device."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda needs a GPU, and PyTorch finds none")


def machine(device: str = "cpu") -> dict[str, Any]:
    """What a reader needs to place the numbers; on a GPU, its name and the versions that its speed depends on."""
    gpu: dict[str, Any] = {}
    if device != "cpu":
        triton = import_module("triton").__version__
        gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "triton": triton}
    return gpu | {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def failure(step: Callable[[], object], *, required: bool) -> str | None:
    """Run a step and return why it failed, or None. Raises on a wrong result, and on any failure if `required`.

    Running out of memory is always returned, never raised: it says as much about the machine.
    """
    try:
        step()
    except Exception as problem:
        if isinstance(problem, WrongResult) or (required and not isinstance(problem, torch.OutOfMemoryError)):
            raise
        return reason(problem)
    return None


def reason(problem: Exception) -> str:
    """The failure in one line."""
    return f"{type(problem).__name__}: {problem}".strip().splitlines()[0][:300]


@dataclass
class Entrant:
    """One implementation at one shape or setting: prepared and checked first, then timed in turns with the others."""

    name: str
    work: str = ""
    """What it computes; entrants with the same work compute the same."""
    required: bool = False
    """Ours: if it fails, the error is raised."""
    sample: Sample | None = None
    """Returns milliseconds of one call. It is set when the entrant is ready, and holds all memory that it needs."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What its row holds besides the times, such as its error and how it was timed."""
    milliseconds: list[float] = field(default_factory=list)
    failed: str | None = None

    def attempt(self, step: Callable[[], object]) -> None:
        """Run a step, unless an earlier one failed."""
        if self.failed is None:
            why = failure(step, required=self.required)
            if why is not None:
                self.fail(why)

    def fail(self, why: str) -> None:
        """Drop out, and release memory."""
        self.failed, self.sample = why, None

    def turn(self) -> None:
        """Time it once more."""
        assert self.sample is not None, f"{self.name} was not made ready"
        self.milliseconds.append(self.sample())

    @property
    def median(self) -> float:
        """Milliseconds."""
        return statistics.median(self.milliseconds)

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"failed": self.failed} if self.failed is not None else {"milliseconds": self.milliseconds, **self.facts}


def take_turns(entrants: Sequence[Entrant], rounds: int, *, deadline: float = math.inf) -> None:
    """Time every entrant once per round, until the deadline but for at least two rounds."""
    for entrant in entrants:
        entrant.milliseconds = []
    for turn in range(rounds):
        if turn >= 2 and time.monotonic() > deadline:
            return
        for entrant in entrants:
            entrant.attempt(entrant.turn)


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of the ratio within a round: what slows the machine in a round slows both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


class Recorder:
    """Writes results to a file, with their page, after every piece; the same command resumes them.

    Without `out` they are only returned. After `minutes`, no new piece is started. With `merge`, another command at the
    same commit and on the same machine adds its pieces to the file, and replaces those that it measures again.
    """

    def __init__(
        self,
        out: Path | None = None,
        *,
        command: str = "",
        minutes: float = math.inf,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.out, self.command, self.progress = out, command, progress
        self.deadline = time.monotonic() + 60 * minutes
        self.results: Results = {}
        self.left_out = self.merge = False

    def begin(
        self,
        page: Page,
        device: str,
        *,
        conclude: Callable[[Results], Results] = lambda results: {},
        merge: bool = False,
        **about: Any,
    ) -> Results:
        """Start a file of this kind, or resume the one that an interrupted run of the same command left. What
        `conclude` makes of the results is added to them."""
        require(device)
        self.page, self.device, self.conclude, self.merge = page, device, conclude, merge
        dtype = str(DTYPES[device]).removeprefix("torch.")
        fresh: Results = {
            "machine": machine(device),
            "command": self.command,
            "commit": git_revision(),
            "device": device,
            "dtype": dtype,
            **about,
        }
        self.results = fresh | {"seconds": 0.0, UNFINISHED: []}
        if self.out is not None and self.out.is_file():
            self._take_over(json.loads(self.out.read_text(encoding="utf-8")), fresh)
        self.start = time.monotonic() - self.results["seconds"]
        return self.results

    def _take_over(self, earlier: Results, fresh: Results) -> None:
        """Continue from the results in the file, if they are of the same kind."""
        different = [key for key, value in fresh.items() if key != "command" and earlier.get(key) != value]
        command = str(earlier.get("command"))
        commands = command.split(_AND) if self.merge else [command]
        kept = {key: _measured(value) for key, value in earlier.items()}
        if not different and UNFINISHED in earlier and commands[-1] == self.command:
            self.results = kept
            self.progress(f"resuming {self.out}: {len(earlier[UNFINISHED])} pieces are done")
        elif not different and self.merge:
            commands = [*(other for other in commands if other != self.command), self.command]
            self.results = kept | {"command": _AND.join(commands), UNFINISHED: []}
            self.progress(f"adding to {self.out}")
        elif self.merge:
            self.progress(f"starting {self.out} over: its {', '.join(different)} differ")

    def piece(
        self, into: str, name: str, measure: Callable[[], list[dict[str, Any]]], *, lenient: bool = False
    ) -> None:
        """Add the rows that `measure` returns to the list `into`; if `lenient`, a failure becomes a row."""
        rows, done = self.results.setdefault(into, []), self.results[UNFINISHED]
        if [into, name] in done:
            return
        if time.monotonic() > self.deadline:
            rows.append({"name": name, "failed": LEFT_OUT})
            self.left_out = True
            return
        self.progress(f"{name} ...")
        try:
            found = measure()
        except WrongResult:
            raise
        except Exception as problem:
            if not lenient:
                raise
            self.progress(traceback.format_exc())
            found = [{"name": name, "failed": reason(problem)}]
        if self.merge:
            found = [{"piece": name, **row} for row in found]
            rows[:] = [row for row in rows if row.get("piece") != name]
        rows += found
        done.append([into, name])
        self.results["seconds"] = round(time.monotonic() - self.start, 1)
        self.progress(f"{name} done, {self.results['seconds']:.0f} s in all")
        self._write()
        free(self.device)

    def end(self) -> Results:
        """Finish after the last piece: the results are complete, unless the time was up."""
        if self.left_out:
            self.progress("the time was up: run the same command again to resume")
        else:
            del self.results[UNFINISHED]
        for path in self._write():
            self.progress(f"wrote {path}")
        return self.results

    def _write(self) -> Iterable[Path]:
        self.results |= self.conclude(self.results)
        if self.out is None:
            return ()
        return write_json(self.out, self.results), self.page.write(self.results, self.out)


def _measured(value: Any) -> Any:
    """Rows without those that were left out, which are measured again."""
    if not isinstance(value, list):
        return value
    return [row for row in value if not (isinstance(row, dict) and row.get("failed") == LEFT_OUT)]
