"""The frozen reference of a run, kept in the run's folder, and the weights that a run starts with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longshort.model import GPT
from longshort.runs import difference
from longshort.train.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from longshort.train.config import ConfigError, TrainConfig

REFERENCE = "reference"
"""The subfolder of a run's folder that holds it, as a checkpoint."""


def save_reference(out: Path, step: int, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Keep the weights after the supervised steps; `state` is what makes them a checkpoint of their own."""
    save_checkpoint(out / REFERENCE, step=step, model=weights, trainer={}, state=state)


def load_reference(out: Path, model: nn.Module) -> None:
    """Give the model the weights of the run's reference."""
    try:
        found = load_checkpoint(out / REFERENCE)
    except CheckpointError as error:
        raise ConfigError(f"{error}; put the run's reference back, or start over in another run.out") from None
    model.load_state_dict(found.model)


def load_start(config: TrainConfig, model: GPT) -> Checkpoint:
    """Give the model the weights that `rl.start` names, those of the same model."""
    found = load_checkpoint(Path(config.rl.start or ""))
    theirs = TrainConfig.from_dict(found.state["config"]).to_dict()["model"]
    ours = config.to_dict()["model"] | {"dropout": theirs["dropout"]}
    different = difference({"model": ours}, {"model": theirs})
    if different is not None:
        key, there, here = different
        raise ConfigError(f"rl.start: {found.path} has {key}={there!r}, not {here!r}; set it to the same")
    try:
        model.load_state_dict(found.model)
    except RuntimeError as error:
        raise ConfigError(f"rl.start: the weights of {found.path} are of another model: {error}") from None
    return found
