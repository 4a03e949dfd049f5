"""RMS normalisation of queries and keys (QK-norm) in the variants that the literature calls by one name.

The block's own norms are `torch.nn.LayerNorm`, which takes `bias=False` itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

QK_NORMS = ("head", "width", "plain")


class RMSNorm(nn.Module):
    """x / rms(x) over the last dimension, times a gain if there is one; computed in fp32, returned in x's dtype.

    torch's own layer returns fp32 under CUDA autocast and warns where the gain's dtype differs from the input's.
    """

    def __init__(self, features: int, *, gain: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.features, self.eps = features, eps
        self.weight = nn.Parameter(torch.ones(features)) if gain else None

    def reset_parameters(self) -> None:
        """Set the gain to one."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        return F.rms_norm(x.to(dtype), (self.features,), weight, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.features}, gain={self.weight is not None}, eps={self.eps}"


class QKNorm(nn.Module):
    """One variant of QK-norm for a projection of shape (B, T, heads, head_dim).

    `head`: over each head's features, with one gain of size head_dim that all heads share (Qwen3, Gemma 3).
    `width`: over all heads' features at once, with a gain of that size (OLMo 2).
    `plain`: over each head's features, without parameters; logits then stay within sqrt(head_dim).
    """

    def __init__(self, variant: str, n_heads: int, head_dim: int) -> None:
        super().__init__()
        if variant not in QK_NORMS:
            raise ValueError(f"qk_norm must be None or one of {', '.join(QK_NORMS)}, got {variant!r}")
        self.variant = variant
        self.norm = RMSNorm(n_heads * head_dim if variant == "width" else head_dim, gain=variant != "plain")

    def forward(self, x: Tensor) -> Tensor:
        if self.variant == "width":
            return self.norm(x.flatten(-2)).unflatten(-1, x.shape[-2:])
        return self.norm(x)
