"""Checkpoints: one folder per saved step, either complete or absent, with a checksum for every file.

`step-00000100/` holds `model.safetensors`, `trainer.safetensors` (optimizer moments and the like) and `state.json`
(numbers, the configuration, and the checksums of all three files). It is written under a temporary name and renamed
when it is complete. In a run whose model is sharded, files of shards take the place of the two: see `sharded`.
"""

from __future__ import annotations

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

from longshort.files import flush, give_usual_mode, sealed, sha256, unsealed

FORMAT, SHARDED = 1, 2
"""Of a checkpoint with whole tensors, and of one with a file per process."""
CHECKPOINTS = "checkpoints"
"""The subfolder of a run's folder that holds them."""
_STATE = "state.json"
_PREFIX = "step-"
_NAME = re.compile(rf"{_PREFIX}([0-9]{{8}}|[1-9][0-9]{{8,}})")
_TENSORS = ("model.safetensors", "trainer.safetensors")
_say = logging.getLogger(__name__).warning
"""Prints a line on standard error, unless the program configures logging otherwise."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or of another kind."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that is no longer what was written; an earlier one can be used instead."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to resume a run as if it had never stopped."""

    path: Path
    step: int
    model: dict[str, Tensor]
    trainer: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path, *, step: int, model: dict[str, Tensor], trainer: dict[str, Tensor], state: dict[str, Any]
) -> Path:
    """Write `folder/step-N`; an interrupted write leaves no such folder."""
    draft = new_draft(folder, step, str(os.getpid()))
    try:
        sums = _write(draft, dict(zip(_TENSORS, (model, trainer), strict=True)))
        return finish(draft, step, {"format": FORMAT, "sha256": sums, "step": step, **state})
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # on a full disk its space is needed
        raise


def new_draft(folder: Path, step: int, writer: str) -> Path:
    """An empty folder in which the checkpoint of a step is written."""
    draft = folder / f".{_PREFIX}{step:08d}.{writer}.tmp"
    _remove(draft)
    draft.mkdir(parents=True)
    return draft


def finish(draft: Path, step: int, document: dict[str, Any]) -> Path:
    """Write `state.json` beside the draft's tensors and give the draft its name."""
    folder = draft.parent
    (draft / _STATE).write_text(sealed(document), encoding="utf-8")
    for path in (*draft.iterdir(), draft):
        flush(path)
    final = folder / f"{_PREFIX}{step:08d}"
    replaced = folder / f".{final.name}.replaced.tmp"
    if os.path.lexists(final):
        _remove(replaced)
        final.rename(replaced)
    draft.rename(final)
    _remove(replaced)
    flush(folder)
    return final


def _write(draft: Path, files: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    """Write the files; returns their checksums."""
    sums = {}
    for name, tensors in files.items():
        try:
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, draft / name)
        except SafetensorError as error:
            raise OSError(f"cannot write {draft / name}: {error}") from None
        give_usual_mode(draft / name)
        sums[name] = sha256(draft / name)
    return sums


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; for a run's folder or a folder of checkpoints, the newest complete one."""
    if (path / _STATE).is_file():
        return _read(path, verified(path))
    newest = newest_checkpoint(path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path)
    if newest is None and not path.exists():
        raise CheckpointError(f"{path}: no such folder; name a run or one of its checkpoints")
    if newest is None:
        raise CheckpointError(f"{path}: holds no complete checkpoint; name a run or a folder with a {_STATE}")
    return newest


def _read(path: Path, state: dict[str, Any]) -> Checkpoint:
    """A checkpoint whose files were verified."""
    model, trainer = whole_tensors(path, state)
    return Checkpoint(path, int(state["step"]), model, trainer, state)


def whole_tensors(path: Path, state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights, and the optimizer's tensors, of a checkpoint of either format."""
    if state["format"] == SHARDED:
        from longshort.train.checkpoints.shard_files import read_whole  # loads torch.distributed.checkpoint

        return read_whole(path)
    model, trainer = (load_file(path / name) for name in _TENSORS)
    return model, trainer


def state_of(path: Path) -> dict[str, Any]:
    """What `state.json` holds. A file without read permission, or of another format version, is not damaged."""
    try:
        state = unsealed((path / _STATE).read_text(encoding="utf-8"))
        kind = state["format"]
        if kind not in (FORMAT, SHARDED):
            raise CheckpointError(
                f"{path}: format {kind!r}, but this version reads only formats {FORMAT} and {SHARDED}"
            )
        int(state["step"])
        names = {*state["sha256"], *(_TENSORS if kind == FORMAT else ())}
        if not names or any(Path(name).name != name or not isinstance(state["sha256"][name], str) for name in names):
            raise ValueError("its checksums are not those of its files")
        if not isinstance(state.get("config", {}), dict):
            raise ValueError("its configuration is not a mapping")
    except (CheckpointError, PermissionError):
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{path / _STATE}: damaged or missing ({error})") from None
    return state


def verified(path: Path) -> dict[str, Any]:
    """The state of a checkpoint all of whose files are what was written."""
    state = state_of(path)
    names = sorted(state["sha256"])
    for name in names:
        if not (path / name).is_file() or sha256(path / name) != state["sha256"][name]:
            raise DamagedCheckpoint(f"{path / name}: damaged or missing (its checksum differs)")
    others = {file.name for file in path.glob("shard-*")} - {*names}
    if others:  # all files of shards are read
        raise DamagedCheckpoint(f"{path / min(others)}: not a part of this checkpoint")
    return state


def newest_checkpoint(folder: Path, message: Callable[[str], None] = _say) -> Checkpoint | None:
    """The newest complete checkpoint of a folder; damaged ones are skipped and reported through `message`."""
    found = newest_complete(folder, message)
    return None if found is None else _read(*found)


def newest_complete(folder: Path, message: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """Path and state of the newest complete checkpoint, whose tensors were verified but not read."""
    names = checkpoint_names(folder)
    while names:
        path = folder / names.pop()
        try:
            return path, verified(path)
        except DamagedCheckpoint as error:
            message(f"{error}; {'trying the one before it' if names else 'there is no earlier one'}")
    return None


def prune_checkpoints(folder: Path, *, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` and the one of step `best`, and drafts left by an earlier process."""
    for name in checkpoint_names(folder)[:-keep]:
        if _step(name) != best:
            _remove(folder / name)
    for draft in folder.glob(f".{_PREFIX}*.tmp"):
        _remove(draft)


def discard_after(folder: Path, step: int) -> None:
    """Remove checkpoints of later steps, so that a run that was rolled back never resumes from one of them."""
    for name in checkpoint_names(folder):
        if _step(name) > step:
            _remove(folder / name)


def checkpoint_names(folder: Path) -> list[str]:
    """Every entry with the name of a checkpoint, complete or not, oldest first."""
    return sorted((path.name for path in folder.glob(f"{_PREFIX}*") if _NAME.fullmatch(path.name)), key=_step)


def _step(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _remove(path: Path) -> None:
    """Remove a checkpoint. Of a symbolic link that a user made, only the link goes: its target is theirs."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, ignore_errors=path.name.startswith("."))
