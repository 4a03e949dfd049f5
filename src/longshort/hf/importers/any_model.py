"""A model of transformers as a `GPT`, by the type that its config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longshort.hf.importers.dense import from_dense, their_config
from longshort.hf.importers.gpt2 import from_gpt2
from longshort.hf.importers.layout import loaded
from longshort.hf.importers.source import Source, Weights, open_source
from longshort.model import GPT


def from_transformers(source: Weights, config: Mapping[str, Any] | None = None) -> GPT:
    """A `GPT` with the weights of a model of transformers; its logits equal transformers' up to fp32 rounding.

    Dense models of the types llama, mistral, qwen2, qwen3, gemma2, gemma3_text, olmo2, olmo3, smollm3 and exaone4,
    gpt2, and this package's own, longshort. Layers with a sliding window become local heads. Where only some layers of
    a model have biases, the others get zeros. What a `GPT` cannot be is refused before the weights are read.

    Args:
        source: a folder written by `save_pretrained`, a safetensors file, the state dict of a causal language model, or
            such a model itself.
        config: the values of config.json, needed with a state dict; otherwise read from the weights' folder.

    >>> from transformers import Qwen3Config, Qwen3ForCausalLM
    >>> sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    >>> theirs = Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    >>> ours = from_transformers(theirs)
    >>> import torch
    >>> tokens = torch.randint(100, (1, 50))
    >>> torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-5)
    True
    """
    opened = open_source(source, config)
    match opened.config.get("model_type", "gpt2"):
        case "gpt2":
            return from_gpt2(source, config)
        case "longshort":
            return _from_longshort(opened)
    return from_dense(opened)


def _from_longshort(source: Source) -> GPT:
    """The `GPT` inside a folder that `longshort export` wrote."""
    try:
        import longshort.hf  # noqa: F401 (so that transformers knows the type)
    except ImportError as error:
        raise ValueError(f"{source.named}: {error}") from None

    config = their_config("longshort", source.config, source.named).to_gpt()
    tensors = {name.removeprefix("model."): x for name, x in source.tensors().items()}
    return loaded(config, tensors, source=source.named)
