"""From a configuration to a trained model: loop, checkpoints, metrics."""

from longshort.train.divergence import TrainingStopped
from longshort.train.models import load_model
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.state import RunResult
from longshort.train.trainer import train

__all__ = ["ConfigError", "RunResult", "TrainConfig", "TrainingStopped", "load_model", "train"]
