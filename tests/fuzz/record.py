"""The record of a run: how many cases had each option in each way to compute them, the worst errors, the failures."""

from __future__ import annotations

import json
import math
import platform
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def versions(devices: Iterable[str]) -> dict[str, Any]:
    """What the numbers depend on."""
    import torch

    from longshort.train.identity import git_revision

    found: dict[str, Any] = {"revision": git_revision()}
    found |= {"python": platform.python_version(), "torch": torch.__version__}
    try:
        found["triton"] = import_module("triton").__version__
    except ImportError:
        found["triton"] = None
    found["machine"] = f"{platform.system()} {platform.machine()}"
    if "cuda" in devices:
        found["gpu"] = torch.cuda.get_device_name()
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier run that are whole: the last line may have been cut off."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def record(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """Everything that is kept of a run."""
    rows = sorted(rows, key=lambda row: (row["device"], row["case"]))
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    cases: dict[str, int] = defaultdict(int)
    worst: dict[str, dict[str, Any]] = {}
    refused: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for way, why in row.get("refused", {}).items():
            refused[f"{row['device']}: {way}"][why] += 1
        cases[row["device"]] += 1
        for way, (share, error, tensor) in row["found"].items():
            named = f"{row['device']}: {way}"
            for tag in row["tags"]:
                counts[tag][named] += 1
            place = worst.setdefault(named, {}).get(row["dtype"])
            if place is None or not share <= place["share of allowed"]:
                found = {"share of allowed": share, "error": error, "tensor": tensor, "case": row["case"]}
                worst[named][row["dtype"]] = {k: _plain(v) for k, v in found.items()}
    failures = [_failure(row, about["seed"]) for row in rows if row["failure"]]
    return {
        "about": about,
        "cases": {"all": len(rows), **cases},
        "failures": failures,
        "refused": refused,
        "worst": dict(sorted(worst.items())),
        "counts": {tag: dict(sorted(ways.items())) for tag, ways in sorted(counts.items())},
    }


def _failure(row: dict[str, Any], seed: int) -> dict[str, Any]:
    command = f"python -m tests.fuzz --seed {seed} --device {row['device']} --only {row['case']}"
    return {"device": row["device"], "case": row["case"], "what": row["failure"], "repeat": command, "of": row["tags"]}


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.3g}") if math.isfinite(value) else str(value)
