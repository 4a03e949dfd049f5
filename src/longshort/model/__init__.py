"""The language model, its configuration and named sizes, and a classifier built from the same blocks."""

from longshort.model.classifier import ClassifierOutput, SequenceClassifier
from longshort.model.config import GPTConfig
from longshort.model.gpt import GPT, GPTOutput
from longshort.model.lengthen import lengthened, meets_new_angles
from longshort.model.presets import PRESETS

__all__ = [
    "GPT",
    "PRESETS",
    "ClassifierOutput",
    "GPTConfig",
    "GPTOutput",
    "SequenceClassifier",
    "lengthened",
    "meets_new_angles",
]
