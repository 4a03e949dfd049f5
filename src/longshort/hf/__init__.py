"""Hugging Face: configuration, model and cache, a thin shell around `GPT`; importing it registers the Auto classes."""

try:
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise ImportError("longshort.hf needs transformers >= 5: pip install 'longshort[hf]'") from error

from longshort.hf.cache import LongShortCache
from longshort.hf.config import LongShortConfig
from longshort.hf.modeling import LongShortForCausalLM

__all__ = ["LongShortCache", "LongShortConfig", "LongShortForCausalLM"]

AutoConfig.register(LongShortConfig.model_type, LongShortConfig, exist_ok=True)
AutoModelForCausalLM.register(LongShortConfig, LongShortForCausalLM, exist_ok=True)
