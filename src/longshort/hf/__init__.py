"""Hugging Face: configuration, model and cache as a thin shell around `GPT`, and head plans for other models.

Importing it registers the Auto classes and the attention `longshort`. Without transformers, names that need it raise
an error when they are used.
"""

import importlib
import sys
from typing import NoReturn

__all__ = [
    "LongShortCache",
    "LongShortConfig",
    "LongShortForCausalLM",
    "LongShortForSequenceClassification",
    "LongShortModel",
    "far_mass",
    "fast_tokenizer",
    "plans_by_mass",
    "use_head_plan",
    "watch_logits",
    "write_folder",
]

try:
    import transformers
except ImportError as error:
    _reason = error

    def __getattr__(name: str) -> NoReturn:
        if name in __all__:
            raise ImportError("longshort.hf needs transformers >= 5.17: pip install 'longshort[hf]'") from _reason
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

else:
    from longshort.hf.cache import LongShortCache
    from longshort.hf.config import LongShortConfig
    from longshort.hf.folder import write_folder
    from longshort.hf.head_plans import use_head_plan, watch_logits
    from longshort.hf.headless import LongShortForSequenceClassification, LongShortModel
    from longshort.hf.measure_reach import far_mass, plans_by_mass
    from longshort.hf.modeling import LongShortForCausalLM
    from longshort.hf.shell import AUTO_CLASSES
    from longshort.hf.tokenizer import fast_tokenizer

    transformers.AutoConfig.register(LongShortConfig.model_type, LongShortConfig, exist_ok=True)
    importlib.import_module("transformers.processing_utils")
    for _auto, _name in AUTO_CLASSES.items():
        getattr(transformers, _auto).register(LongShortConfig, globals()[_name], exist_ok=True)
        # `transformers serve` does not use the Auto classes: it looks up the class that a config.json names in the
        # package itself, which another object replaces when processing_utils, needed by many models, is first imported.
        vars(sys.modules["transformers"])[_name] = globals()[_name]
    # Nor does lm-evaluation-harness: it warns of a type of model that this table lacks.
    _names = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    _names.setdefault(LongShortConfig.model_type, "LongShortForCausalLM")
