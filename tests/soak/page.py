"""The results of a soak: docs/notes/soak.json, and the page made from it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from longshort.files import write_atomically, write_json
from longshort.version import __version__

ROOT = Path(__file__).parents[2]
DATA, PAGE = ROOT / "docs" / "notes" / "soak.json", ROOT / "docs" / "notes" / "soak.md"
OUTCOMES = {
    "refused": "one-line error",
    "noticed": "continues, and says what is damaged",
    "harmless": "same result, bit for bit",
    "undetected": "another result, unreported",
    "crash": "crash",
}

_INTRODUCTION = """\
`make soak` writes this page and `docs/notes/soak.json`, which lists every case. To repeat one case:
`python -m tests.soak --only kill:3 --seed {seed}`. A tiny model is trained on a CPU with one thread, where training is
deterministic: whatever happens to a run, it must end bit for bit as the undisturbed run does.
"""
_KILLS = """\
Runs that save every third step are killed with SIGKILL and restarted until they finish. Most kills come half-way
through a random file operation, the others from outside at a random time. Weights, optimizer state, the remaining
checkpoints, losses, evaluations and spikes must equal those of the undisturbed run, with every step once in the log.
"""
_DAMAGE = """\
One file of a run stopped half-way, or of its data, has bits flipped or a block zeroed, or is cut short, lengthened,
emptied, removed or swapped. The commands that read it follow: train (to resume), evaluate, generate, report, data.
"""
_FULL = """\
From the named operation on, the disk is full, and a write stops half-way. The command must end in a one-line error,
leave earlier files as they were and, run again with room, end as if nothing had happened. For compare, whose runs are
finished beforehand, only the first writes are tried: the table and the page, not the pictures after them.
"""


def circumstances(seed: int, seconds: float) -> dict[str, Any]:
    """What was run, and on what kind of machine."""
    import safetensors
    import torch

    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    versions = {"longshort": __version__, "torch": torch.__version__, "safetensors": safetensors.__version__}
    versions["python"] = platform.python_version()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, no GPU used"
    return {"seed": seed, "seconds": round(seconds), "commit": commit, "versions": versions, "machine": machine}


def write(results: dict[str, Any]) -> list[Path]:
    """Write the numbers and the page."""
    return [write_json(DATA, results), write_atomically(PAGE, page(results))]


def page(results: dict[str, Any]) -> str:
    """The page, from the numbers alone."""
    about, problems = results["about"], [row for part in ("kills", "corruptions", "full") for row in results[part]]
    problems = [row for row in problems if row["problem"]]
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    parts = [
        "# Soak: kills, damage, full disks\n",
        _INTRODUCTION.format(seed=about["seed"]),
        f"Commit {about['commit'][:12]}; {versions}; {about['machine']}; seed {about['seed']}; "
        f"{about['seconds'] / 60:.0f} minutes.\n",
        f"**{len(problems)} problems.**\n" if problems else "**No problems found.**\n",
        *[f"- `{row['case']}`: {row['problem']}\n" for row in problems],
        _kills(results["kills"]),
        _corruptions(results["corruptions"]),
        _full(results["full"]),
    ]
    return "\n".join(parts)


def _kills(rows: list[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row["kills"])
    lines = [
        f"## {sum(total.values())} kills\n",
        _KILLS,
        "| moment | kills |\n|---|--:|",
        *(f"| {name} | {number} |" for name, number in sorted(total.items())),
        "",
        "| setting | runs | equal to the undisturbed run |\n|---|--:|--:|",
    ]
    for setting in dict.fromkeys(row["setting"] for row in rows):
        mine = [row for row in rows if row["setting"] == setting]
        lines.append(f"| {setting} | {len(mine)} | {sum(not row['problem'] for row in mine)} |")
    return "\n".join(lines) + "\n"


def _corruptions(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"## {len(rows)} damaged files\n",
        _DAMAGE,
    ]
    for key, name in (("kind", "file"), ("damage", "damage")):
        lines += [f"| {name} | " + " | ".join(OUTCOMES.values()) + " |", "|---|" + "--:|" * len(OUTCOMES)]
        for value in sorted({row[key] for row in rows}):
            found = Counter(row["outcome"] for row in rows if row[key] == value)
            lines.append(f"| {value} | " + " | ".join(str(found[outcome]) for outcome in OUTCOMES) + " |")
        lines.append("")
    return "\n".join(lines)


def _full(rows: list[dict[str, Any]]) -> str:
    used = sorted({row["operation"] for row in rows})
    lines = [
        f"## A full disk, at each of {len(rows)} writes\n",
        _FULL,
        "| command | writes | " + " | ".join(used) + " | nothing lost |",
        "|---|--:|" + "--:|" * len(used) + "--:|",
    ]
    for verb in dict.fromkeys(row["case"].split(":")[1] for row in rows):
        mine = [row for row in rows if row["case"].split(":")[1] == verb]
        found = Counter(row["operation"] for row in mine)
        counts = " | ".join(str(found[name]) for name in used)
        lines.append(f"| {verb} | {len(mine)} | {counts} | {sum(not row['problem'] for row in mine)} |")
    return "\n".join(lines) + "\n"
