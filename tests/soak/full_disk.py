"""Fills the disk at the first, second, third ... write of a command: nothing may be lost or half-written.

The command must end in a one-line error and leave earlier files as they were, and the same command, given room, must
end as if nothing had happened.
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
    """A command that writes, and what it must leave behind."""

    arguments: list[str]
    problem: Callable[[Path, Path], str]
    """Says how a folder in which it was run again differs from the undisturbed one."""
    older: tuple[str, ...] = ()
    """Files that exist before, and afterwards must be unchanged or complete and new."""
    most: int | None = None
    """Only this many of its writes are tried; None means all."""


def _same_files(*parts: str) -> Callable[[Path, Path], str]:
    """Compare some folders or files byte for byte, drafts included."""

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
        most=12,  # the pictures come after, are written the same way, and are slow to draw
    ),
}
OLD = b'what was there before, with the marks of our own kinds: "checkpoint": "variant" data-variant=\n'


def build(base: Path, to: Path, verbs: Sequence[str]) -> Path:
    """A folder with the input of every verb: a finished run, a finished comparison, GPT-2's weights."""
    folder = subject.with_run(subject.copy(base, to), "plain", steps=6, save_every=2, eval_every=3)
    subject.must_work(longshort(subject.TRAIN, folder))
    if "compare" in verbs:
        subject.must_work(longshort(VERBS["compare"].arguments, folder))
    _write_gpt2(folder / "gpt2")
    return folder


def starting_point(verb: str, built: Path, to: Path) -> Path:
    """A copy without the verb's output, or with an older one."""
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
    """What the verb writes when there is room, and how many of its writes are tried."""
    folder = starting_point(verb, built, work / f"room-{verb}")
    outcome = subject.must_work(longshort(VERBS[verb].arguments, folder, fault=Fault(FULL, NEVER)))
    return folder, min(outcome.seen, VERBS[verb].most or outcome.seen)


def one(case: tuple[str, int], *, built: Path, work: Path) -> dict[str, Any]:
    """Fill the disk at one write of a verb; check what is left, and that the verb succeeds when there is room again."""
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
        return "did not end in a one-line error"
    if code == 0 and (problem := VERBS[verb].problem(folder, reference)):
        return f"succeeded, but {problem}"
    for name in VERBS[verb].older:
        if (folder / name).read_bytes() not in (OLD, (reference / name).read_bytes()):
            return f"{name} is neither the old nor the new one"
    if verb == "train":
        for path in (folder / subject.RUN / "checkpoints").glob("step-*"):
            theirs = reference / subject.RUN / "checkpoints" / path.name / "model.safetensors"
            json.loads((path / "state.json").read_text())
            if theirs.is_file() and (path / "model.safetensors").read_bytes() != theirs.read_bytes():
                return f"{path.name} is incomplete"
    return ""


def _again(verb: str, folder: Path, reference: Path) -> str:
    outcome = longshort(VERBS[verb].arguments, folder)
    if verb in ("export", "import") and outcome.code == 1 and not VERBS[verb].problem(folder, reference):
        return ""  # it was already complete, and existing output is not overwritten
    if outcome.code or outcome.crashed:
        return f"run again, with room: {outcome.said}"
    problem = VERBS[verb].problem(folder, reference)
    return f"run again, with room: {problem}" if problem else ""


def _write_gpt2(folder: Path) -> None:
    """A GPT-2 of one layer with Hugging Face's names and shapes."""
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
