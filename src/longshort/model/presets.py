"""Named sizes: the fields that `GPTConfig.preset` starts from."""

from __future__ import annotations

from typing import Any

_PAPER = {"vocab_size": 10_000, "context": 2048, "n_global": 1}
_GPT2 = {
    "vocab_size": 50_257,
    "context": 1024,
    "n_global": 1,
    "window": 128,
    "mlp": "gelu_tanh",
    "bias": True,
    "tie_embeddings": True,
}
_MODERN = {
    "context": 2048,
    "positions": "rotary",
    "mlp": "swiglu",
    "norm": "rms",
    "norm_eps": 1e-6,
    "qk_norm": "head",
    "n_global": 1,
    "window": 128,
}
_GROUPED = {"vocab_size": 32_768, "n_kv_heads": 4}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 257, "context": 512, "n_layers": 2, "width": 64, "n_heads": 4, "n_global": 1, "window": 16},
    "paper-6m": _PAPER | {"n_layers": 6, "width": 192, "n_heads": 6, "window": 50},
    "paper-12l-768": _PAPER | {"n_layers": 12, "width": 768, "n_heads": 12, "window": 100},
    "gpt2-small": _GPT2 | {"n_layers": 12, "width": 768, "n_heads": 12},
    "gpt2-medium": _GPT2 | {"n_layers": 24, "width": 1024, "n_heads": 16},
    "modern-10m": _MODERN
    | {"vocab_size": 8192, "n_layers": 8, "width": 256, "ff_width": 704, "n_heads": 8, "window": 64},
    "modern-30m": _MODERN | {"vocab_size": 8192, "n_layers": 12, "width": 384, "ff_width": 1024, "n_heads": 6},
    "modern-125m": _MODERN | _GROUPED | {"n_layers": 12, "width": 768, "ff_width": 2048, "n_heads": 12, "n_global": 3},
    "modern-350m": _MODERN | _GROUPED | {"n_layers": 24, "width": 1024, "ff_width": 2752, "n_heads": 16, "n_global": 4},
    "modern-1b": _MODERN
    | _GROUPED
    | {"context": 4096, "n_layers": 20, "width": 2048, "ff_width": 5440, "n_heads": 16, "n_global": 4},
}
"""The paper's models (arXiv 2505.15548, as in the author's code), GPT-2's sizes with LS-attention, and `tiny`, which a
laptop trains on bytes in the configuration of that name.

GPT-2's vocabulary stays at 50,257, as in its tokenizer and checkpoints; `vocab_size=50304` is a multiple of 64.

The modern ones have RMS norms, SwiGLU of about 8/3 of the width, rotary positions, QK-norm per head, no biases and an
untied head. From 125m on, four KV heads serve all query heads, and one of the four is global: the cache keeps a
quarter of the keys beyond the window. Their names are their parameters, within 10 %.
"""
