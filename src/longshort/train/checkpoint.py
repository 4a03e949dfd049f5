"""Checkpoints: a folder a step, either whole or not there, with a checksum for every file.

`step-00000100/` holds `model.safetensors`, `trainer.safetensors` (optimizer moments and the like) and `state.json`
(numbers, the configuration, the checksums of the other two). It is written under another name and renamed at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longshort.files import parse_json

FORMAT = 1
_STATE = "state.json"
_TENSORS = {"model.safetensors", "trainer.safetensors"}
_PREFIX = "step-"


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or of another kind."""


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on as if never stopped."""

    path: Path
    step: int
    model: dict[str, Tensor]
    trainer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, *, step: int, model: dict[str, Tensor], trainer: dict[str, Tensor], state: dict[str, Any]
) -> Path:
    """Write `folder/step-N`; whatever stops it half-way leaves no such folder."""
    final = folder / f"{_PREFIX}{step:08d}"
    draft = folder / f".{final.name}.{os.getpid()}.tmp"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        _write(draft, {"model.safetensors": model, "trainer.safetensors": trainer}, {"step": step, **state})
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # on a full disk its room is needed
        raise
    replaced = folder / f".{final.name}.replaced.tmp"
    if final.exists():
        final.rename(replaced)
    draft.rename(final)
    shutil.rmtree(replaced, ignore_errors=True)
    _flush(folder)
    return final


def _write(draft: Path, files: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    sums = {}
    for name, tensors in files.items():
        try:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, draft / name)
        except SafetensorError as error:
            raise OSError(f"cannot write {draft / name}: {error}") from None
        sums[name] = _checksum(draft / name)
    document = {"format": FORMAT, "sha256": sums, **state}
    (draft / _STATE).write_text(json.dumps(document, allow_nan=False), encoding="utf-8")
    for file in draft.iterdir():
        _flush(file)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint and verify it; a folder of checkpoints or of a run gives its newest whole one."""
    if not (path / _STATE).is_file():
        newest = newest_checkpoint(path / "checkpoints" if (path / "checkpoints").is_dir() else path)
        if newest is None:
            raise CheckpointError(f"{path} holds no whole checkpoint (a folder with {_STATE} and safetensors files)")
        return newest
    try:
        state = parse_json((path / _STATE).read_text(encoding="utf-8"))
        wanted = dict(state["sha256"])
        if not (
            isinstance(state["step"], int) and isinstance(state.get("config", {}), dict) and wanted.keys() >= _TENSORS
        ):
            raise ValueError(f"it needs a step, a configuration and checksums of {' and '.join(sorted(_TENSORS))}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / _STATE} is damaged: {error}") from None
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {state.get('format')!r}; this version reads format {FORMAT}")
    for name, checksum in wanted.items():
        if not (path / name).is_file() or _checksum(path / name) != checksum:
            raise CheckpointError(f"{path / name} is damaged or missing: its checksum differs")
    tensors = [load_file(path / name) for name in ("model.safetensors", "trainer.safetensors")]
    return Checkpoint(path, state["step"], tensors[0], tensors[1], state)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a folder; damaged ones are passed over with a warning."""
    for path in sorted(_checkpoints(folder), reverse=True):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
    return None


def prune_checkpoints(folder: Path, *, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` and the one of step `best`, and drafts that an earlier process left."""
    paths = sorted(_checkpoints(folder))
    for path in paths[:-keep]:
        if _step(path) != best:
            shutil.rmtree(path)
    for draft in folder.glob(f".{_PREFIX}*.tmp"):
        shutil.rmtree(draft, ignore_errors=True)


def discard_after(folder: Path, step: int) -> None:
    """Remove checkpoints of later steps: a run that went back must not resume from the path it left."""
    for path in _checkpoints(folder):
        if _step(path) > step:
            shutil.rmtree(path)


def _checkpoints(folder: Path) -> Iterator[Path]:
    for path in folder.glob(f"{_PREFIX}*"):
        if path.is_dir() and path.name.removeprefix(_PREFIX).isdigit():
            yield path


def _step(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
