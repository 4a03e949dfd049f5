"""FLOPs per token, from which the share of the device's peak that training reaches (MFU) follows."""

from __future__ import annotations

import torch

from longshort.model import GPT, SequenceClassifier
from longshort.reach.costs import plan_visible

_PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12, "3090": 71e12}
"""Dense bf16 matrix FLOP/s, from the vendors' data sheets."""


def flops_per_token(model: GPT | SequenceClassifier, length: int) -> float:
    """Forward and backward: 6 per matrix weight, 12 per head feature and visible key (PaLM, arXiv 2204.02311)."""
    tables = [model.embedding] if not model.config.tie_embeddings else []
    if model.position_embedding is not None:
        tables.append(model.position_embedding)
    weights = sum(p.numel() for p in model.parameters()) - sum(table.weight.numel() for table in tables)
    causal = not isinstance(model, SequenceClassifier) or model.causal
    span = min(length, model.config.attention_chunk or length)
    seen = sum(plan_visible(plan, span, causal=causal) for plan in model.config.layer_plans)
    return 6.0 * weights + 12.0 * model.config.head_features * seen


def peak_flops(device: torch.device) -> float | None:
    """The device's peak in bf16, or None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAK_BF16.items() if part in name), None)
