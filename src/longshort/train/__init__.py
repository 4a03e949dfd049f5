"""From a configuration to a trained model: loop, checkpoints, metrics."""

from longshort.train.config import ConfigError, TrainConfig
from longshort.train.trainer import RunResult, TrainingStopped, load_model, train

__all__ = ["ConfigError", "RunResult", "TrainConfig", "TrainingStopped", "load_model", "train"]
