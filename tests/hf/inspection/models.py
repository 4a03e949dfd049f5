"""Small models of transformers' own classes, with weights large enough that heads differ, and folders of them."""

from copy import deepcopy

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    Qwen3Config,
)

from longshort.data import ByteTokenizer
from longshort.hf import fast_tokenizer

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 256}
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen3": Qwen3Config(**SIZES, **GROUPED),
    "gemma3": Gemma3TextConfig(**SIZES, **GROUPED, **SLIDING, query_pre_attn_scalar=8),
    "gpt2": GPT2Config(
        vocab_size=257,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        attn_pdrop=0.0,
        bos_token_id=256,
        eos_token_id=256,
    ),
    "gpt-neox": GPTNeoXConfig(**SIZES),
    "gpt-oss": GptOssConfig(**SIZES, **GROUPED, **SLIDING, num_local_experts=2, num_experts_per_tok=1),
}


def model_of(name, attention="eager"):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[name]), attn_implementation=attention).eval()
    return model.apply(lambda m: m.weight.data.mul_(4) if isinstance(m, torch.nn.Linear) else None)


def folder_of(model, path, **options):
    """As on the hub: weights, perhaps in parts with an index, configuration and tokenizer."""
    model.save_pretrained(path, **options)
    fast_tokenizer(ByteTokenizer()).save_pretrained(path)
    return path
