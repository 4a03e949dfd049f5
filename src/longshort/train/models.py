"""The model of a run: new, or from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from longshort.model import GPT
from longshort.train.checkpoint import Checkpoint, load_checkpoint
from longshort.train.config import TrainConfig


def build_model(config: TrainConfig) -> GPT:
    """A new model of this run, with the loss that it is trained by."""
    model = GPT(config.model)
    model.exponent, model.linear_below = config.loss.exponent, config.loss.linear_below
    return model


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[GPT, Checkpoint]:
    """The model of a checkpoint, or of a run's newest one, ready to evaluate."""
    checkpoint = load_checkpoint(path)
    model = build_model(TrainConfig.from_dict(checkpoint.state["config"]))
    model.load_state_dict(checkpoint.model)
    return model.to(device).eval(), checkpoint
