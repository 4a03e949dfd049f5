"""The subject of the soak: a folder with text, its tokens, and runs small enough to take a second.

All paths are relative and commands run inside the folder, so that copies of it give exactly the same output.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import yaml

from .children import Outcome, longshort

CONFIG, DATA, RUN, TEXT = "config.yaml", "data", "run", "text"
PREPARE = ["data", TEXT, "--out", DATA, "--vocab-size", "300", "--split", "0.8", "0.1", "0.1", "--workers", "1"]
TRAIN = ["train", CONFIG]
SAVE_EVERY = 3

_PLAIN = {
    "model": {"context": 32, "n_layers": 1, "width": 16, "n_heads": 2, "n_global": 1, "window": 8},
    "data": {"path": DATA, "batch_size": 4},
    "optimizer": {"lr": 1e-2},
    "schedule": {"warmup": 2},
    "telemetry": {"logits_every": 2},
    "run": {
        **{"out": RUN, "steps": 30, "device": "cpu"},
        **{"eval_every": 5, "eval_batches": 1, "save_every": SAVE_EVERY, "keep": 2},
    },
}
_GUARD = {"guard_warmup": 5, "guard_window": 8, "guard_cooldown": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "skipping": {
        "model": {"n_layers": 2, "dropout": 0.1, "sigma_reparam": True},
        "data": {"segments": True},
        "schedule": {"kind": "wsd"},
        "run": {"accumulate": 2},
        # A threshold so low that ordinary noise sometimes counts as a spike.
        "stability": {"guard": "skip", "guard_threshold": 0.7, "clip": "tensor", **_GUARD},
    },
    "rolling back": {
        "run": {"keep": 1, "save_best": False},
        "stability": {"guard": "rollback", "guard_threshold": 0.9, "guard_cap": 100, "qk_clip": 50.0, **_GUARD},
    },
}
"""Together they use everything that has state of its own."""


def configuration(name: str, **run: Any) -> dict[str, Any]:
    """One of the `SETTINGS`, with changes to its section `run`."""
    changes = SETTINGS[name]
    sections = {key: {**_PLAIN.get(key, {}), **changes.get(key, {})} for key in {**_PLAIN, **changes}}
    sections["run"] |= run
    return sections


def prepare(folder: Path) -> Path:
    """Thirty documents of random words, and their tokens."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(40)]
    (folder / TEXT).mkdir(parents=True)
    for number in range(30):
        (folder / TEXT / f"{number}.txt").write_text(" ".join(draw.choices(words, k=200)))
    must_work(longshort(PREPARE, folder))
    return folder


def with_run(folder: Path, name: str, **run: Any) -> Path:
    """Write the configuration; everything else in the folder stays."""
    (folder / CONFIG).write_text(yaml.safe_dump(configuration(name, **run)))
    return folder


def copy(folder: Path, to: Path) -> Path:
    """A copy of a subject."""
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(folder, to))


def must_work(outcome: Outcome) -> Outcome:
    """A command without a fault must not fail."""
    if outcome.code or outcome.crashed:
        raise RuntimeError(f"an undisturbed command failed ({outcome.code}): {outcome.out}{outcome.err}")
    return outcome


def difference(run: Path, reference: Path) -> str:
    """How a finished run differs from the undisturbed one, in words; empty if it is equal bit for bit."""
    mine, theirs = records(run), records(reference)
    for kind in ("train", "eval", "spike", "end"):
        pairs = [[_untimed(record) for record in log if record["kind"] == kind] for log in (mine, theirs)]
        if pairs[0] != pairs[1]:
            return f"the {kind} records differ"
    steps = [record["step"] for record in mine if record["kind"] in ("train", "spike")]
    if sorted(set(steps)) != list(range(1, max(steps) + 1)):
        return "some step is not in the log"
    checkpoints = [sorted((folder / "checkpoints").glob("step-*")) for folder in (run, reference)]
    if [path.name for path in checkpoints[0]] != [path.name for path in checkpoints[1]]:
        return f"the checkpoints are {[path.name for path in checkpoints[0]]}"
    for mine_at, theirs_at in zip(*checkpoints, strict=True):
        names = [sorted(file.name for file in folder.iterdir()) for folder in (mine_at, theirs_at)]
        if names[0] != names[1]:
            return f"{mine_at.name} holds {names[0]}"
        for name in names[0]:
            if name != "state.json" and _tensors(mine_at / name) != _tensors(theirs_at / name):
                return f"{mine_at.name}/{name} differs"
        if _state(mine_at) != _state(theirs_at):
            return f"{mine_at.name}/state.json differs"
    if (run / "tokenizer.json").read_bytes() != (reference / "tokenizer.json").read_bytes():
        return "tokenizer.json differs"
    return ""


def _tensors(file: Path) -> tuple[dict[str, Any], bytes]:
    """The contents of a safetensors file, without its remarks, whose order varies."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return {name: about for name, about in json.loads(data[8:end]).items() if name != "__metadata__"}, data[end:]


def records(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, which must all be complete."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _untimed(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("seconds", "tokens_per_second", "crc32")}


def _state(checkpoint: Path) -> dict[str, Any]:
    state = json.loads((checkpoint / "state.json").read_text())
    state["progress"].pop("seconds")
    return {key: value for key, value in state.items() if key not in ("sha256", "crc32")}
