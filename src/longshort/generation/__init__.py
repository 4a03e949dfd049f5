"""Text from a model."""

from longshort.generation.sampling import generate, next_token

__all__ = ["generate", "next_token"]
