"""The disk is full at the first, second, third ... write of a command, and stays so: nothing is lost, nothing is half.

The command ends in one line of error, what was there before is there still, and the same command, given room, ends as
if nothing had happened.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import subject
from .children import longshort
from .faults import FULL, Fault

EXPORTED = "exported"
NEVER = 10**9
"""More writes than any command makes."""


@dataclass(frozen=True)
class Verb:
    """A command that writes, and what it must leave."""

    arguments: list[str]
    problem: Callable[[Path, Path], str]
    """How a folder in which it was given again differs from the undisturbed one, in words."""
    older: tuple[str, ...] = ()
    """Files that stand there before and must afterwards be as they were, or whole and new."""
    most: int | None = None
    """Only so many of its writes are tried; None: all."""


def _same_files(*parts: str) -> Callable[[Path, Path], str]:
    """Compare what stands in some folders or files, drafts included, to the byte."""

    def problem(folder: Path, reference: Path) -> str:
        for part in parts:
            mine, theirs = (_contents(top / part) for top in (folder, reference))
            different = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
            if different:
                return f"{different[0]} differs or is left over"
        return ""

    return problem


def _contents(top: Path) -> dict[str, bytes]:
    paths = [top] if top.is_file() else sorted(top.rglob("*"))
    return {str(path.relative_to(top.parent)): path.read_bytes() for path in paths if path.is_file()}


def _same_run(folder: Path, reference: Path) -> str:
    left = [path.name for path in (folder / subject.RUN).rglob(".*") if path.name != ".lock"]
    return f"{left[0]} is left over" if left else subject.difference(folder / subject.RUN, reference / subject.RUN)


VERBS = {
    "train": Verb(subject.TRAIN, _same_run),
    "data": Verb(subject.PREPARE, _same_files(subject.DATA)),
    "export": Verb(["export", "run", EXPORTED], _same_files(EXPORTED)),
    "import": Verb(
        ["import", "gpt2", "--out", "imported", "--tokenizer", "bytes"],
        _same_files("imported"),
    ),
    "evaluate": Verb(
        ["evaluate", "run", "--limit", "2", "--out", "evaluation.json"],
        _same_files("evaluation.json"),
        older=("evaluation.json",),
    ),
    "report": Verb(["report", "run", "--no-png"], _same_files("report.html"), older=("report.html",)),
    "compare": Verb(
        ["compare", subject.CONFIG, "--variants", "ls", "--out", "compared"],
        _same_files("compared/comparison.json", "compared/report.html"),
        older=("compared/comparison.json", "compared/report.html"),
        most=12,  # the pictures after it are written as the page is, and take long to draw
    ),
}
OLD = b'what was there before, with the marks of our own kinds: "checkpoint": "variant" data-variant=\n'


def build(base: Path, to: Path, verbs: Sequence[str]) -> Path:
    """A folder in which every verb finds its input: a finished run, a finished comparison, GPT-2's weights."""
    folder = subject.with_run(subject.copy(base, to), "plain", steps=6, save_every=2, eval_every=3)
    subject.must_work(longshort(subject.TRAIN, folder))
    if "compare" in verbs:
        subject.must_work(longshort(VERBS["compare"].arguments, folder))
    _write_gpt2(folder / "gpt2")
    return folder


def starting_point(verb: str, built: Path, to: Path) -> Path:
    """A copy in which the verb's output does not stand yet, or an older one does."""
    folder = subject.copy(built, to)
    if verb == "train":
        shutil.rmtree(folder / subject.RUN)
    if verb == "data":
        shutil.rmtree(folder / subject.DATA)
    for name in VERBS[verb].older:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(OLD)
    return folder


def undisturbed(verb: str, built: Path, work: Path) -> tuple[Path, int]:
    """What the verb makes where there is room, and how many of its writes are tried."""
    folder = starting_point(verb, built, work / f"room-{verb}")
    outcome = subject.must_work(longshort(VERBS[verb].arguments, folder, fault=Fault(FULL, NEVER)))
    return folder, min(outcome.seen, VERBS[verb].most or outcome.seen)


def one(case: tuple[str, int], *, built: Path, work: Path) -> dict[str, Any]:
    """Fill the disk at one write of a verb, and see what is left and what the verb makes of it when there is room."""
    verb, number = case
    folder = starting_point(verb, built, work / f"full-{verb}-{number}")
    reference = work / f"room-{verb}"
    outcome = longshort(VERBS[verb].arguments, folder, fault=Fault(FULL, number))
    _, operation, path = outcome.hit.split(maxsplit=2) if outcome.hit else ("", "none", "")
    problem = _after(verb, folder, reference, outcome.code, outcome.crashed) or _again(verb, folder, reference)
    if problem:
        problem = f"{operation} {path}: {problem} [{outcome.said}]"
    else:
        shutil.rmtree(folder)
    return {"case": f"full:{verb}:{number}", "operation": operation, "code": outcome.code, "problem": problem}


def _after(verb: str, folder: Path, reference: Path, code: int, crashed: bool) -> str:
    """What is wrong after the disk was full."""
    if crashed:
        return "ended otherwise than in one line"
    if code == 0 and (problem := VERBS[verb].problem(folder, reference)):
        return f"ended well, but {problem}"
    for name in VERBS[verb].older:
        if (folder / name).read_bytes() not in (OLD, (reference / name).read_bytes()):
            return f"{name} is neither the older nor the new one"
    if verb == "train":
        for path in (folder / subject.RUN / "checkpoints").glob("step-*"):
            theirs = reference / subject.RUN / "checkpoints" / path.name / "model.safetensors"
            json.loads((path / "state.json").read_text())
            if theirs.is_file() and (path / "model.safetensors").read_bytes() != theirs.read_bytes():
                return f"{path.name} is not whole"
    return ""


def _again(verb: str, folder: Path, reference: Path) -> str:
    outcome = longshort(VERBS[verb].arguments, folder)
    if verb in ("export", "import") and outcome.code == 1 and not VERBS[verb].problem(folder, reference):
        return ""  # it was whole already, and what exists is not written over
    if outcome.code or outcome.crashed:
        return f"given again, with room: {outcome.said}"
    problem = VERBS[verb].problem(folder, reference)
    return f"given again, with room: {problem}" if problem else ""


def _write_gpt2(folder: Path) -> None:
    """GPT-2 of one layer with the names and shapes of Hugging Face's."""
    import numpy as np
    from safetensors.numpy import save_file

    draw, width, tokens = np.random.default_rng(0), 16, 257
    shapes = {"wte.weight": (tokens, width), "wpe.weight": (32, width)}
    for name, out in (("attn.c_attn", 3 * width), ("attn.c_proj", width), ("mlp.c_fc", 4 * width)):
        shapes |= {f"h.0.{name}.weight": (width, out), f"h.0.{name}.bias": (out,)}
    shapes |= {"h.0.mlp.c_proj.weight": (4 * width, width), "h.0.mlp.c_proj.bias": (width,)}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    folder.mkdir()
    save_file(
        {key: draw.normal(0, 0.02, shape).astype("float32") for key, shape in shapes.items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2}))
