"""The results of a soak: docs/notes/soak.json, docs/notes/restarts.json, and the page made from them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from longshort.files import write_atomically
from longshort.version import __version__

from . import subject

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "docs" / "notes"
DATA, RESTARTS, PAGE = NOTES / "soak.json", NOTES / "restarts.json", NOTES / "soak.md"
OUTCOMES = {
    "refused": "one-line error",
    "noticed": "continues, and says what is damaged",
    "harmless": "same result, bit for bit",
    "undetected": "another result, unreported",
    "crash": "crash",
}

_INTRODUCTION = """\
`make soak` writes this page, `docs/notes/soak.json` and `docs/notes/restarts.json`, which list every case. To repeat
one case: `python -m tests.soak --only kill:3 --seed {seed}`. A tiny model is trained on a CPU with one thread, where
training is deterministic: whatever happens to a run, it must end bit for bit as the undisturbed run does.
"""
_KILLS = """\
Runs that save every third step are killed with SIGKILL and restarted until they finish. Most kills come half-way
through a random file operation, the others from outside at a random time. Weights, optimizer state, the remaining
checkpoints, losses, evaluations and spikes must equal those of the undisturbed run, with every step once in the log.
"""
_RESTARTS = """\
Runs of two processes under torchrun's agent (`--max-restarts`), one of which is killed with SIGKILL: either of the
two, half-way through a file operation, or from outside while it trains or starts. The agent restarts both, and the run
resumes from its last checkpoint. The end must equal the undisturbed run as above. Saves are {every} steps apart and
written while training continues, so a kill costs fewer than two intervals. Here the agent forks its workers, so that
torch is loaded only once. This part alone: `python -m tests.soak --only restart`.
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


def write() -> Path:
    """Write the page of the numbers that the two files hold."""
    return write_atomically(PAGE, page(json.loads(DATA.read_text()), json.loads(RESTARTS.read_text())))


def page(results: dict[str, Any], restarts: dict[str, Any]) -> str:
    """The page, from the numbers alone."""
    rows = [row for part in ("kills", "corruptions", "full") for row in results[part]] + restarts["restarts"]
    problems = [row for row in rows if row["problem"]]
    parts = [
        "# Soak: kills, lost processes, damage, full disks\n",
        _INTRODUCTION.format(seed=results["about"]["seed"]),
        _about(results["about"]),
        f"**{len(problems)} problems.**\n" if problems else "**No problems found.**\n",
        *[f"- `{row['case']}`: {row['problem']}\n" for row in problems],
        _kills(results["kills"]),
        _restarts(**restarts),
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


def _about(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    return (
        f"Commit {about['commit'][:12]}; {versions}; {about['machine']}; seed {about['seed']}; "
        f"{about['seconds'] / 60:.0f} minutes.\n"
    )


def _restarts(about: dict[str, Any], restarts: list[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for row in restarts:
        total.update(row["kills"])
    kills, ranks = sum(total.values()), [sum(row["ranks"][rank] for row in restarts) for rank in (0, 1)]
    lost = [steps for row in restarts for steps in row["lost_steps"]]
    seconds = sum(row["seconds"] - row["undisturbed_seconds"] for row in restarts)
    lines = [
        f"## {kills} lost processes\n",
        _RESTARTS.format(every=subject.SAVE_EVERY),
        _about(about),
        "| moment | kills |\n|---|--:|",
        *(f"| {name} | {number} |" for name, number in sorted(total.items())),
        "",
        "| setting | runs | kills | restarts | equal to the undisturbed run |\n|---|--:|--:|--:|--:|",
    ]
    for setting in dict.fromkeys(row["setting"] for row in restarts):
        mine = [row for row in restarts if row["setting"] == setting]
        runs, equal = (sum(row["runs"] - (part and bool(row["problem"])) for row in mine) for part in (0, 1))
        counts = [sum(sum(row["kills"].values()) for row in mine), sum(row["restarts"] for row in mine)]
        lines.append(f"| {setting} | {runs} | {counts[0]} | {counts[1]} | {equal} |")
    lines.append(
        f"\n{ranks[0]} kills hit rank 0, {ranks[1]} rank 1. A kill cost at most {max(lost, default=0)} recorded steps, "
        f"{sum(lost) / kills:.1f} on average, and {seconds / kills:.1f} seconds with the restart."
    )
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
