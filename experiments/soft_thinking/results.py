"""The data of `soft-thinking`: what every model solves, and how much more than another, by seed and by problem."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.engine import measures
from experiments.engine.evidence import Difference, Interval, interval, paired
from experiments.engine.measures import Row
from experiments.engine.records import Data
from experiments.soft_thinking.cell import SIZES, counted
from experiments.soft_thinking.cells import cells_in, right_share
from experiments.soft_thinking.settings import FULL, IS_SOFT, QUICK, RATE, START, TASKS
from longshort.rl.passes import pass_at_k
from longshort.runs import RunError

KS = (1, 8, 32)
READINGS = ("soft", "hard")
WINDOW = 10
"""Rewards of a run are compared as means over this many parts of its steps: the last part and the best one."""


def collect(folder: Path) -> Data:
    """Counts of right samples by variant, seed and reading, rewards over steps, learning rates, signal to noise."""
    found = list(cells_in(folder))
    if not found:
        raise RunError(f"{folder}: holds no finished cell; run `python -m experiments soft-thinking` first")
    sizes = QUICK if measures.read_json(folder / SIZES)["quick"] else FULL
    read = [cell for cell in found if not cell[1].startswith(f"{RATE}-")]
    order = [f"{task}-{variant}" for task, variants in TASKS.items() for variant in (START, *variants)]
    names = [name for name in order if any(f"{task}-{variant}" == name for task, variant, _, _ in read)]
    return {
        "provenance": _made(folder, [cell[3] for cell in found]),
        "problems": sizes.problems,
        "samples": sizes.samples,
        "missed": {
            task: [
                seed
                for name, variant, seed, cell in read
                if name == task and variant == START and cell["step"] >= sizes.supervised_steps
            ]
            for task in TASKS
        },
        "rows": [
            _row(name, [cell for cell in read if f"{cell[0]}-{cell[1]}" == name], sizes.samples) for name in names
        ],
        "curves": [
            {"variant": f"{task}-{variant}", "seed": seed, "rewards": cell["rewards"]}
            for task, variant, seed, cell in read
            if variant != START
        ],
        "rates": [
            {"task": task, "family": _family(variant, _rate(cell)), "rate": _rate(cell)}
            | {"right": right_share(cell, sizes)}
            for task, variant, _, cell in found
            if variant.startswith(f"{RATE}-")
        ],
    }


def _made(folder: Path, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How the numbers were made."""
    logs = [cell["log"] for cell in cells]
    seeds = {cell["settings"]["run"]["seed"] for cell in cells}
    return {
        "commands": measures.commands(folder),
        "device": sorted({log["device"] for log in logs}),
        "git": sorted({log.get("git") or "unknown" for log in logs}),
        "started": min(log["started"] for log in logs),
        "seeds": sorted(seeds),
        "diverged": [cell["settings"]["run"]["variant"] for cell in cells if cell["diverged"]],
    }


def _family(variant: str, rate: float) -> str:
    """
    >>> _family("rate-soft-paper-3e-05", 3e-5)
    'soft-paper'
    """
    return variant.removeprefix(f"{RATE}-").removesuffix(f"-{rate:g}")


def _rate(cell: dict[str, Any]) -> float:
    return float(cell["settings"]["optimizer"]["lr"])


def _row(name: str, cells: Sequence[tuple[str, str, int, dict[str, Any]]], samples: int) -> Row:
    """All that is known of a variant, seed by seed; a run that diverged solves nothing."""
    cells = sorted(cells, key=lambda cell: cell[2])
    task, variant, _, first = cells[0]
    row: Row = {"variant": name, "task": task, "method": variant, "seeds": [seed for _, _, seed, _ in cells]}
    row |= {"steps": [cell["step"] for *_, cell in cells], "rate": _rate(first)}
    row["counts"] = {
        reading: [cell["readings"][reading] if not cell["diverged"] else None for *_, cell in cells]
        for reading in READINGS
    }
    row["passes"] = {
        reading: {
            str(k): [statistics.fmean(_passes(counts, samples, k)) for counts in row["counts"][reading]]
            for k in KS
            if k <= samples
        }
        for reading in READINGS
    }
    if variant == START:
        row["signal"] = [cell.get("signal") for *_, cell in cells]
    else:
        row["kept"] = [kept_share(cell["rewards"]) for *_, cell in cells]
    return row


def _passes(counts: str | None, samples: int, k: int) -> list[float]:
    return [0.0] if counts is None else pass_at_k(counted(counts), samples, k)


def judged(data: Data) -> Data:
    """The data without the seeds whose supervised start missed the goal, which are shown and not judged."""
    rows = []
    for row in data["rows"]:
        missed = data.get("missed", {}).get(row["task"], [])
        kept = [i for i, seed in enumerate(row["seeds"]) if seed not in missed]
        if kept:
            rows.append({key: _only(value, kept, len(row["seeds"])) for key, value in row.items()})
    return data | {"rows": rows}


def _only(value: Any, kept: Sequence[int], seeds: int) -> Any:
    """Of lists with an entry for each seed, these entries."""
    if isinstance(value, dict):
        return {key: _only(one, kept, seeds) for key, one in value.items()}
    return [value[i] for i in kept] if isinstance(value, list) and len(value) == seeds else value


def kept_share(rewards: Sequence[float]) -> float:
    """The mean reward of the last tenth of the steps as a share of that of the best tenth.

    >>> kept_share([0.1, 0.5, 0.4, 0.3, 0.2])
    0.4
    """
    size = max(1, len(rewards) // WINDOW)
    means = [statistics.fmean(rewards[i : i + size]) for i in range(len(rewards) - size + 1)]
    best = max(means, default=0.0)
    return means[-1] / best if best else 0.0


@dataclass(frozen=True)
class Gain:
    """How much more one variant solves than another, in points of Pass@k."""

    over_seeds: Difference
    over_problems: Interval
    """Each problem's difference is the mean over seeds."""

    def is_at_least(self, bound: float) -> bool | None:
        """True or False if every seed and both intervals lie on that side of the bound; None if they do not."""
        cases = [self.over_seeds.is_at_least(bound), self.over_problems.is_at_least(bound)]
        cases += [value >= bound for value in self.over_seeds.values]
        return cases[0] if len(set(cases)) == 1 else None

    def __str__(self) -> str:
        return f"{self.over_seeds.mean:+.1f} ({self.over_seeds.low:+.1f} to {self.over_seeds.high:+.1f})"


def own_reading(method: str) -> str:
    """Soft for a variant that was trained so, else hard."""
    return "soft" if IS_SOFT.get(method) else "hard"


def gain(data: Data, mine: str, theirs: str, k: int) -> Gain | None:
    """Of two variants, each read in its own way, on the same problems; None where one has not run."""
    rows = measures.by_name(data)
    if mine not in rows or theirs not in rows or k > data["samples"]:
        return None
    first, second = (_by_seed(rows[name], data["samples"], k) for name in (mine, theirs))
    means = ({seed: 100 * statistics.fmean(shares) for seed, shares in of.items()} for of in (first, second))
    if (over_seeds := paired(*means)) is None:
        return None
    pairs = [zip(first[seed], second[seed], strict=True) for seed in sorted(first.keys() & second.keys())]
    problems = zip(*([100 * (a - b) for a, b in pair] for pair in pairs), strict=True)
    return Gain(over_seeds, interval([statistics.fmean(values) for values in problems]))


def _by_seed(row: Row, samples: int, k: int) -> dict[int, list[float]]:
    counts = row["counts"][own_reading(row["method"])]
    length = max((len(text) for text in counts if text is not None), default=0)
    return {
        seed: [0.0] * length if text is None else _passes(text, samples, k)
        for seed, text in zip(row["seeds"], counts, strict=True)
    }
