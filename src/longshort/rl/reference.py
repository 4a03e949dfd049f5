"""The frozen reference of a run, kept in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longshort.train.checkpoints.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from longshort.train.settings.config import ConfigError

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
