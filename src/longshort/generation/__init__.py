"""Text from a model."""

from longshort.generation.engine import generate
from longshort.generation.prefill import shared_prefill
from longshort.generation.sampling import Sampling, next_token
from longshort.generation.soft import (
    AUTHORS_CLAMP,
    SoftThinking,
    ThinkingRecord,
    gaussian_log_density,
    gaussian_sigma,
    gumbel_log_density,
    mixed,
)
from longshort.generation.text import TextStream

__all__ = [
    "AUTHORS_CLAMP",
    "Sampling",
    "SoftThinking",
    "TextStream",
    "ThinkingRecord",
    "gaussian_log_density",
    "gaussian_sigma",
    "generate",
    "gumbel_log_density",
    "mixed",
    "next_token",
    "shared_prefill",
]
