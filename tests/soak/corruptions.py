"""Damages one file of a run or of its data; a command that reads it must either say so or give the same result.

A command has noticed if it ends in a one-line error, or continues and says what is damaged. Otherwise its result must
equal that of the same command on undamaged files.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import subject
from .children import Outcome, longshort

EVALUATE = ["evaluate", "run", "--limit", "4", "--out", "evaluation.json"]
GENERATE = ["generate", "run", "--tokens", "20", "--seed", "0", "--prompt", "abc"]
REPORT = ["report", "run", "--no-png"]
RESUME = [*subject.TRAIN, "run.steps=30"]
RESUMED = "resumed"
"""The folder in which the undamaged run was resumed."""
_NOTICE = re.compile(r"damaged|incomplete|left out|lacks|missing|no complete")


@dataclass(frozen=True)
class Damage:
    """Something that can happen to a file; `change` takes its content and a random generator."""

    name: str
    change: Callable[[bytes, random.Random], bytes | None]


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _zero(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content))
    length = min(len(content) - start, draw.choice((1, 16, 512, 4096)))
    return content[:start] + bytes(length) + content[start + length :]


DAMAGES = (
    Damage("flipped bits", _flip),
    Damage("cut short", lambda content, draw: content[: draw.randrange(1, len(content))]),
    Damage("zeroed block", _zero),
    Damage("bytes appended", lambda content, draw: content + draw.randbytes(draw.choice((1, 2, 64)))),
    Damage("emptied", lambda content, draw: b""),
    Damage("removed", lambda content, draw: None),
)
SWAPPED = "swapped"
_WEIGHTS = {"flipped bits": 9, "cut short": 3, "zeroed block": 4, "bytes appended": 2, "emptied": 1, "removed": 1}

TARGETS: dict[str, tuple[tuple[str, ...], tuple[list[str], ...]]] = {
    "model.safetensors": (("run/checkpoints/*/model.safetensors",), (EVALUATE, RESUME)),
    "trainer.safetensors": (("run/checkpoints/*/trainer.safetensors",), (RESUME,)),
    "state.json": (("run/checkpoints/*/state.json",), (EVALUATE, RESUME)),
    "*.tokens": (("data/train.tokens", "data/validation.tokens"), (EVALUATE, RESUME, subject.PREPARE)),
    "header of *.tokens": (("data/train.json", "data/validation.json"), (EVALUATE, RESUME, subject.PREPARE)),
    "tokenizer.json": (("data/tokenizer.json", "run/tokenizer.json"), (GENERATE, RESUME, GENERATE, subject.PREPARE)),
    "metrics.jsonl": (("run/metrics.jsonl",), (REPORT, RESUME, REPORT)),
}
"""For each kind of file: where it is, and the commands that read it, in order."""
_SHARES = (24, 16, 34, 30, 20, 32, 44)


def plan(count: int, base: Path, seed: int, kinds: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The cases, drawn at random from all or some kinds of files: which file, and what happens to it."""
    draw = random.Random(f"{seed}/corruption")
    kinds = list(kinds) or [kind for kind, share in zip(TARGETS, _SHARES, strict=True) for _ in range(share)]
    draw.shuffle(kinds)
    cases = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        files = sorted(str(path.relative_to(base)) for pattern in TARGETS[kind][0] for path in base.glob(pattern))
        damage = SWAPPED if draw.random() < 0.1 else draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        file = draw.choice([*files, files[-1], files[-1]])  # favours the newest checkpoint, which is read first
        case = {"case": f"corruption:{number}", "kind": kind, "file": file, "damage": damage}
        if damage == SWAPPED:
            case["with"] = draw.choice(_neighbours(base, file))
        cases.append(case)
    return cases


def _neighbours(base: Path, file: str) -> list[str]:
    """Files that could be mistaken for it: in its folder, of the same name elsewhere, and in the run beside it."""
    here = [path for path in (base / file).parent.iterdir() if path.is_file()]
    tops = ("run", "other") if "checkpoints" in file else ("run", "data")
    named = [path for top in tops for path in (base / top).rglob(Path(file).name)]
    found = {str(path.relative_to(base)) for path in here + named if not path.name.startswith(".")}
    return sorted(found - {file})


def apply(case: dict[str, Any], folder: Path, seed: int) -> None:
    """Do the damage."""
    path = folder / case["file"]
    if case["damage"] == SWAPPED:
        other = folder / case["with"]
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)
        return
    damage = next(damage for damage in DAMAGES if damage.name == case["damage"])
    content = damage.change(path.read_bytes(), random.Random(f"{seed}/{case['case']}"))
    path.unlink() if content is None else path.write_bytes(content)


def build(base: Path, to: Path) -> Path:
    """A run stopped after 20 of its 30 steps, and beside it a run with another seed."""
    folder = subject.with_run(subject.copy(base, to), "skipping", save_every=4, keep=3)
    subject.must_work(longshort([*subject.TRAIN, "run.steps=20"], folder))
    subject.must_work(longshort([*subject.TRAIN, "run.steps=20", "run.seed=1", "run.out=other"], folder))
    return folder


def expected(built: Path, work: Path, kinds: set[str]) -> dict[str, list[Any]]:
    """The results on undamaged files: for each kind of file, those of its commands."""
    answers: dict[str, list[Any]] = {}
    for kind in sorted(kinds):
        folder = subject.copy(built, work / "whole")
        answers[kind] = []
        for command in TARGETS[kind][1]:
            outcome = subject.must_work(longshort(command, folder))
            answers[kind].append(_answer(command, outcome, folder))
    subject.must_work(longshort(RESUME, subject.copy(built, work / RESUMED)))
    return answers


def one(case: dict[str, Any], *, built: Path, answers: dict[str, list[Any]], work: Path, seed: int) -> dict[str, Any]:
    """Damage one file of a copy and run the commands that read it."""
    folder = subject.copy(built, work / case["case"].replace(":", "-"))
    apply(case, folder, seed)
    row = {**case, "outcome": "harmless", "said": "", "problem": ""}
    for command, answer in zip(TARGETS[case["kind"]][1], answers[case["kind"]], strict=True):
        outcome = longshort(command, folder)
        if outcome.crashed:
            return {**row, "outcome": "crash", "problem": f"{command[0]}: {outcome.said}"}
        says = next((line for line in (outcome.err + outcome.out).splitlines() if _NOTICE.search(line)), "")
        if outcome.code == 1:
            row |= {"outcome": "refused", "said": row["said"] or outcome.said}
            continue
        if says:
            row |= {"outcome": "refused" if row["outcome"] == "refused" else "noticed", "said": row["said"] or says}
        if command is RESUME:
            different = subject.difference(folder / subject.RUN, work / RESUMED / subject.RUN)
            excused = bool(says)
        else:  # once the user was told, later results may differ
            different = "" if _answer(command, outcome, folder) == answer else "another result"
            excused = row["outcome"] != "harmless"
        if different and not excused:
            return {**row, "outcome": "undetected", "problem": f"{command[0]}: {different}, and nothing was said"}
    shutil.rmtree(folder)
    return row


def _answer(command: list[str], outcome: Outcome, folder: Path) -> Any:
    """The result of a command, without times."""
    match command[0]:
        case "evaluate":
            return json.loads((folder / "evaluation.json").read_text())
        case "generate":
            return outcome.out
        case "report":
            return (folder / "report.html").read_text()
        case "data":
            return {path.name: path.read_bytes().hex() for path in sorted((folder / "data").iterdir())}
    return None
