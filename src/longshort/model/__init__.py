"""The language model, its configuration and its named sizes."""

from longshort.model.config import PRESETS, GPTConfig
from longshort.model.gpt import GPT, GPTOutput

__all__ = ["GPT", "PRESETS", "GPTConfig", "GPTOutput"]
