"""Norms: those of the blocks, RMS normalisation of queries and keys (QK-norm), and batch norm that knows of padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NORMS = ("layer", "rms")
QK_NORMS = ("head", "width", "plain")


class RMSNorm(nn.Module):
    """x / rms(x) over the last dimension, times a gain if there is one; computed in fp32, returned in x's dtype.

    With `unit_offset` the gain is 1 + weight, as Gemma stores it. torch's own layer returns fp32 under CUDA autocast
    and warns where the gain's dtype differs from the input's.
    """

    def __init__(self, features: int, *, gain: bool = True, eps: float = 1e-6, unit_offset: bool = False) -> None:
        super().__init__()
        self.features, self.eps, self.unit_offset = features, eps, unit_offset
        self.weight = nn.Parameter(torch.empty(features)) if gain else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to one."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        if weight is not None and self.unit_offset:
            weight = 1 + weight
        return F.rms_norm(x.to(dtype), (self.features,), weight, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        offset = ", unit_offset=True" if self.unit_offset else ""
        return f"{self.features}, gain={self.weight is not None}, eps={self.eps}{offset}"


def token_norm(
    kind: str, features: int, *, eps: float = 1e-5, bias: bool = False, unit_offset: bool = False
) -> nn.LayerNorm | RMSNorm:
    """A norm of each token's features: "layer" (LayerNorm, with or without bias) or "rms" (`RMSNorm`, never with one).

    >>> token_norm("rms", 8)
    RMSNorm(8, gain=True, eps=1e-05)
    """
    if kind not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {kind!r}")
    if kind == "rms":
        return RMSNorm(features, eps=eps, unit_offset=unit_offset)
    if unit_offset:
        raise ValueError("norm_unit_offset must be False unless norm is rms, got True")
    return nn.LayerNorm(features, eps=eps, bias=bias)


class QKNorm(nn.Module):
    """One variant of QK-norm for a projection of shape (B, T, heads, head_dim).

    `head`: over each head's features, with one gain of size head_dim that all heads share (Qwen3, Gemma 3).
    `width`: over all heads' features at once, with a gain of that size (OLMo 2).
    `plain`: over each head's features, without parameters; logits then stay within sqrt(head_dim).
    """

    def __init__(self, variant: str, n_heads: int, head_dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        if variant not in QK_NORMS:
            raise ValueError(f"qk_norm must be None or one of {', '.join(QK_NORMS)}, got {variant!r}")
        self.variant = variant
        features = n_heads * head_dim if variant == "width" else head_dim
        self.norm = RMSNorm(features, gain=variant != "plain", eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        if self.variant == "width":
            return self.norm(x.flatten(-2)).unflatten(-1, x.shape[-2:])
        return self.norm(x)


class SequenceBatchNorm(nn.Module):
    """Batch norm of x (B, T, width) over sequences and positions, padding left out of the means; computed in fp32.

    Which positions are padding is said by segments (B, T), negative there. Models on Long Range Arena have batch norm
    (S4, arXiv 2111.00396); torch's own would average over the padding too.

    >>> norm = SequenceBatchNorm(8)
    >>> norm(torch.randn(2, 5, 8), torch.tensor([[0, 0, 0, 0, -1], [0, 0, -1, -1, -1]])).shape
    torch.Size([2, 5, 8])
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_variance", torch.ones(features))

    def forward(self, x: Tensor, segments: Tensor | None = None) -> Tensor:
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = self.running_mean, self.running_variance
        if self.training:
            mean, variance = self._moments(values, segments)
        normalised = (values - mean) * torch.rsqrt(variance + self.eps)
        return (normalised * self.weight + self.bias).to(x.dtype)

    def _moments(self, x: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance over what is not padding; also moves the running ones towards them."""
        real = torch.ones_like(x[..., :1]) if segments is None else (segments >= 0).unsqueeze(-1).to(x.dtype)
        count = real.sum().clamp(min=1)
        mean = (x * real).sum((0, 1)) / count
        variance = ((x - mean).square() * real).sum((0, 1)) / count
        with torch.no_grad():
            unbiased = variance * (count / (count - 1).clamp(min=1))
            for running, found in ((self.running_mean, mean), (self.running_variance, unbiased)):
                new = found.to(running.dtype)  # one that is not finite would stay in it for good
                running.lerp_(torch.where(new.isfinite(), new, running), self.momentum)
        return mean, variance
