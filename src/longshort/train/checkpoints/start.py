"""The weights of another run that a run starts with: `rl.start` and `task.start`."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from longshort.parallel.shards import as_shard
from longshort.runs import difference
from longshort.train.checkpoints.checkpoint import Checkpoint, load_checkpoint
from longshort.train.settings.config import ConfigError, TrainConfig


def load_start(config: TrainConfig, model: nn.Module, *, section: str) -> Checkpoint:
    """Give the model the weights that the section's key `start` names, those of the same model."""
    found = load_checkpoint(Path(getattr(config, section).start))
    theirs = TrainConfig.from_dict(found.state["config"]).to_dict()["model"]
    ours = config.to_dict()["model"] | {"dropout": theirs["dropout"]}
    different = difference({"model": ours}, {"model": theirs})
    if different is not None:
        key, there, here = different
        raise ConfigError(f"{section}.start: {found.path} has {key}={there!r}, not {here!r}; set it to the same")
    try:
        places = model.state_dict()
        model.load_state_dict({name: as_shard(x, places.get(name)) for name, x in found.model.items()})
    except RuntimeError as error:
        raise ConfigError(f"{section}.start: the weights of {found.path} are of another model: {error}") from None
    return found
