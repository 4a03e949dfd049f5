"""What a conversion keeps until it is finished, so that the same command resumes it: a folder beside the one it writes.

`begun.json` holds the settings, which are all that decides the result, and what was measured once that is complete;
`checkpoints` holds the training.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.files import LOCK, alone_in, sealed, unsealed, write_atomically
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, CheckpointError

BEGUN = "begun.json"
_UNPRINTED = ("model", "text", "plan")
"""Settings whose values are too long for an error."""


@dataclass
class Unfinished:
    """A conversion that was begun, now or earlier."""

    folder: Path
    settings: dict[str, Any]
    measured: dict[str, Any] | None = None
    """What was measured, if that is complete."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    def keep(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Save what was measured, and return it."""
        self.measured = measured
        self.save()
        return measured

    def save(self) -> None:
        """Write `begun.json`."""
        content = {"settings": self.settings, "measured": self.measured}
        write_atomically(self.folder / BEGUN, sealed(content, indent=2) + "\n")

    @contextmanager
    def removed_if_wrong(self) -> Iterator[None]:
        """Remove the folder if the block raises a ValueError: the same command would fail again."""
        try:
            yield
        except CheckpointError:
            raise
        except ValueError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder: there is nothing to resume."""
        shutil.rmtree(self.folder)


@contextmanager
def unfinished(out: Path, settings: dict[str, Any]) -> Iterator[Unfinished]:
    """The conversion with these settings that writes `out`, begun or resumed, for this process alone.

    Its folder stays, to be resumed, unless the block removes it. A folder that holds anything else, or a conversion
    with other settings, is an error and stays as it is.
    """
    folder, settings = Path(f"{out}.unfinished"), json.loads(json.dumps(settings))
    _check_ours(folder)
    with alone_in(folder):
        found = Unfinished(folder, settings)
        if (folder / BEGUN).is_file():
            begun = _read(folder)
            _check_same(folder, begun["settings"], settings)
            found.measured = begun["measured"]
        else:
            found.save()
        yield found


def _check_ours(folder: Path) -> None:
    """Raise if there is something that no conversion left; one stopped at once left nothing, or its lock."""
    if not os.path.lexists(folder) or (folder / BEGUN).is_file():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    other = [f"holds {name}" for name in names if name != LOCK and not name.startswith(f".{BEGUN}.")]
    if other or not folder.is_dir():
        found = other[0] if other else "is not a folder"
        raise ValueError(f"{folder}: {found}, so it is no unfinished conversion; move it, or give another --out")


def _read(folder: Path) -> dict[str, Any]:
    try:
        begun = unsealed((folder / BEGUN).read_text(encoding="utf-8"))
        return {"settings": dict(begun["settings"]), "measured": begun["measured"]}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{folder / BEGUN}: damaged ({error}); remove {folder} to begin again") from None


def _check_same(folder: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    for name in ours | theirs:
        there, here = theirs.get(name), ours.get(name)
        if there != here:
            what = f"another {name}" if name in _UNPRINTED else f"{name} {there}, not {here}"
            raise ValueError(
                f"{folder}: begun with {what}; run the command that began it to resume, remove the folder to begin "
                "again, or give another --out"
            )


def model_digest(model: PreTrainedModel) -> str:
    """sha256 of a model: its configuration, but not where it was read from, and its weights."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def tokens_digest(tokens: Tensor) -> str:
    """sha256 of sequences (B, T)."""
    found = hashlib.sha256(f"{tuple(tokens.shape)}".encode())
    found.update(_bytes(tokens))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
