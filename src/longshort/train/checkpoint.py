"""Checkpoints: one folder per saved step, either whole or not there, with a checksum for every file.

`step-00000100/` holds `model.safetensors`, `trainer.safetensors` (optimizer moments and the like) and `state.json`
(numbers, the configuration, the checksums of the other two and of itself). It is written under another name and renamed
at the end.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longshort.files import give_usual_mode, sealed, unsealed

FORMAT = 1
CHECKPOINTS = "checkpoints"
"""Where in a run's folder they are."""
_STATE = "state.json"
_PREFIX = "step-"
_NAME = re.compile(rf"{_PREFIX}([0-9]{{8}}|[1-9][0-9]{{8,}})")
_TENSORS = ("model.safetensors", "trainer.safetensors")
_say = logging.getLogger(__name__).warning
"""A line on standard error, unless the program that uses the package has other plans."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or of another kind."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is no longer what was written; the one before it will do."""


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to resume as if never stopped."""

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
    _remove(draft)
    draft.mkdir(parents=True)
    try:
        _write(draft, dict(zip(_TENSORS, (model, trainer), strict=True)), {"step": step, **state})
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # on a full disk its room is needed
        raise
    replaced = folder / f".{final.name}.replaced.tmp"
    if os.path.lexists(final):
        _remove(replaced)
        final.rename(replaced)
    draft.rename(final)
    _remove(replaced)
    _flush(folder)
    return final


def _write(draft: Path, files: dict[str, dict[str, Tensor]], state: dict[str, Any]) -> None:
    sums = {}
    for name, tensors in files.items():
        try:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, draft / name)
        except SafetensorError as error:
            raise OSError(f"cannot write {draft / name}: {error}") from None
        give_usual_mode(draft / name)
        sums[name] = _checksum(draft / name)
    document = {"format": FORMAT, "sha256": sums, **state}
    (draft / _STATE).write_text(sealed(document), encoding="utf-8")
    for path in (*draft.iterdir(), draft):
        _flush(path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint and verify it; a folder of checkpoints or of a run gives its newest whole one."""
    if (path / _STATE).is_file():
        return _read(path)
    newest = newest_checkpoint(path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path)
    if newest is None:
        raise CheckpointError(f"{path} holds no whole checkpoint (a folder with {_STATE} and safetensors files)")
    return newest


def _read(path: Path) -> Checkpoint:
    """One checkpoint. What cannot be read for want of permission, or is of another version, is not called damaged."""
    try:
        state = unsealed((path / _STATE).read_text(encoding="utf-8"))
        if state.get("format", FORMAT) != FORMAT:
            raise CheckpointError(f"{path} has format {state['format']!r}; this version reads format {FORMAT}")
        step, sums = int(state["step"]), {name: state["sha256"][name] for name in _TENSORS}
        if not isinstance(state.get("config", {}), dict):
            raise ValueError("its configuration does not hold key: value pairs")
    except (CheckpointError, PermissionError):
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path / _STATE} is damaged or missing: {error}") from None
    for name, checksum in sums.items():
        if not (path / name).is_file() or _checksum(path / name) != checksum:
            raise DamagedCheckpoint(f"{path / name} is damaged or missing: its checksum differs")
    model, trainer = (load_file(path / name) for name in _TENSORS)
    return Checkpoint(path, step, model, trainer, state)


def newest_checkpoint(folder: Path, message: Callable[[str], None] = _say) -> Checkpoint | None:
    """The newest whole checkpoint of a folder; `message` is told of damaged ones, which are passed over."""
    names = checkpoint_names(folder)
    while names:
        try:
            return _read(folder / names.pop())
        except DamagedCheckpoint as error:
            message(f"{error}; {'trying the checkpoint' if names else 'there is none'} before it")
    return None


def prune_checkpoints(folder: Path, *, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` and the one of step `best`, and drafts that an earlier process left."""
    for name in checkpoint_names(folder)[:-keep]:
        if _step(name) != best:
            _remove(folder / name)
    for draft in folder.glob(f".{_PREFIX}*.tmp"):
        _remove(draft)


def discard_after(folder: Path, step: int) -> None:
    """Remove checkpoints of later steps: a run that went back must not resume from the path it left."""
    for name in checkpoint_names(folder):
        if _step(name) > step:
            _remove(folder / name)


def checkpoint_names(folder: Path) -> list[str]:
    """What there is under the name of a checkpoint, whole or not, oldest first."""
    return sorted((path.name for path in folder.glob(f"{_PREFIX}*") if _NAME.fullmatch(path.name)), key=_step)


def _step(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _remove(path: Path) -> None:
    """Remove a checkpoint. One that a user linked to loses its link, so that it is no longer resumed from or counted;
    what the link points to is theirs and stays.
    """
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, ignore_errors=path.name.startswith("."))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
