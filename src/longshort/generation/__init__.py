"""Text from a model."""

from longshort.generation.engine import generate
from longshort.generation.sampling import Sampling, next_token
from longshort.generation.text import TextStream

__all__ = ["Sampling", "TextStream", "generate", "next_token"]
