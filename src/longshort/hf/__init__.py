"""Hugging Face: configuration, model and cache, a thin shell around `GPT`; importing it registers the Auto classes."""

try:
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise ImportError("longshort.hf needs transformers >= 5: pip install 'longshort[hf]'") from error

from longshort.hf.cache import LongShortCache
from longshort.hf.config import LongShortConfig
from longshort.hf.folder import write_folder
from longshort.hf.modeling import LongShortForCausalLM
from longshort.hf.tokenizer import fast_tokenizer

__all__ = ["LongShortCache", "LongShortConfig", "LongShortForCausalLM", "fast_tokenizer", "write_folder"]

AutoConfig.register(LongShortConfig.model_type, LongShortConfig, exist_ok=True)
AutoModelForCausalLM.register(LongShortConfig, LongShortForCausalLM, exist_ok=True)
