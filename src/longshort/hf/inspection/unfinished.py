"""What a conversion keeps until it is finished, so that the same command resumes it: a folder beside the one it writes.

`begun.json` holds the settings, which are all that decides the result, each loss that was measured, and all that was
measured once it is complete; `heads.safetensors` holds what the heads do, and `checkpoints` the training.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import torch as safetensors
from torch import Tensor
from transformers import PreTrainedModel

from longshort.files import LOCK, alone_in, sealed, unsealed, write_atomically
from longshort.heads import HeadPlan
from longshort.hf.inspection.measure import Measured
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, CheckpointError

BEGUN = "begun.json"
HEADS = "heads.safetensors"
_UNPRINTED = ("model", "text", "plan")
"""Settings whose values are too long for an error."""


@dataclass
class Unfinished:
    """A conversion that was begun, now or earlier."""

    folder: Path
    settings: dict[str, Any]
    measured: dict[str, Any] | None = None
    """What was measured, if that is complete."""
    losses: dict[str, float] = field(default_factory=dict)
    """Those measured so far, by what they are of."""
    others: dict[str, Any] | None = None
    """What the heads do apart from tensors, and the sha256 of `heads.safetensors`, once that is written."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    def keep(self, measured: dict[str, Any]) -> dict[str, Any]:
        """Save what was measured, and return it."""
        self.measured = measured
        self.save()
        return measured

    def loss(self, of: str, compute: Callable[[], float]) -> float:
        """A loss that was measured before, or is now, and is kept."""
        if of not in self.losses:
            found = compute()
            if not math.isfinite(found):
                raise ValueError(f"model must give finite losses, got {found} for {of}")
            self.losses[of] = found
            self.save()
        return self.losses[of]

    def heads(self, compute: Callable[[], Measured]) -> Measured:
        """What the heads do, measured before or now, and kept."""
        path = self.folder / HEADS
        if self.others is None:
            measured = compute()
            held = {item.name: getattr(measured, item.name) for item in fields(measured)}
            tensors = {name: value.contiguous() for name, value in held.items() if isinstance(value, Tensor)}
            content = safetensors.save(tensors)
            write_atomically(path, content)
            self.others = {name: value for name, value in held.items() if name not in tensors}
            self.others |= {"plans": [plan.to_dict() for plan in measured.plans], "sha256": _sha256(content)}
            self.save()
            return measured
        content = path.read_bytes() if path.is_file() else b""
        kept = dict(self.others)
        if _sha256(content) != kept.pop("sha256"):
            raise CheckpointError(f"{path}: missing or damaged; remove {self.folder} to begin again")
        plans = tuple(HeadPlan.from_dict(plan) for plan in kept.pop("plans"))
        return Measured(plans=plans, **kept | safetensors.load(content))

    def save(self) -> None:
        """Write `begun.json`."""
        content = {
            "settings": self.settings,
            "losses": self.losses,
            "heads": self.others,
            "measured": self.measured,
        }
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
            found.measured, found.losses, found.others = begun["measured"], begun["losses"], begun["heads"]
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
        return {name: begun[name] for name in ("measured", "heads")} | {
            name: dict(begun[name]) for name in ("settings", "losses")
        }
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


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


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
