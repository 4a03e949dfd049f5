"""The pre-LN transformer block: each of attention and MLP reads a normalised copy and adds to the residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from longshort.nn.attention import LSAttention, LSAttentionResult, StatsOnRequest
from longshort.nn.layer_cache import CacheLayer
from longshort.nn.norms import SequenceBatchNorm
from longshort.nn.sigma_reparam import linear
from longshort.ops.options import Stats

ACTIVATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


class MLP(nn.Module):
    """Two linear layers with a GELU between them; `activation` is "gelu" (exact) or "gelu_tanh" (GPT-2's)."""

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        activation: str = "gelu",
        bias: bool = False,
        dropout: float = 0.0,
        sigma_reparam: bool = False,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        self.up = linear(width, [hidden], bias=bias, sigma_reparam=sigma_reparam)
        self.activation = nn.GELU(approximate=ACTIVATIONS[activation])
        self.down = linear(hidden, [width], bias=bias, sigma_reparam=sigma_reparam)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.activation(self.up(x))))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the norms may be replaced by `SequenceBatchNorm`.

    >>> import torch
    >>> from longshort import HeadPlan
    >>> block = Block(64, LSAttention(64, HeadPlan.full(4)), MLP(64, 256))
    >>> block(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    if TYPE_CHECKING:
        __call__: StatsOnRequest

    def __init__(self, width: int, attention: LSAttention, mlp: MLP, *, bias: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=eps, bias=bias)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(width, eps=eps, bias=bias)
        self.mlp = mlp

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        cache: CacheLayer | None = None,
        stats: Stats = False,
    ) -> Tensor | LSAttentionResult:
        """The residual stream (B, T, width) after the block; with `stats`, also the statistics of its attention."""
        normalised = apply_norm(self.attention_norm, x, segments)
        attended = self.attention(normalised, positions=positions, segments=segments, cache=cache, stats=stats)
        found = None
        if isinstance(attended, LSAttentionResult):
            attended, found = attended
        x = x + attended
        x = x + self.mlp(apply_norm(self.mlp_norm, x, segments))
        return x if found is None else LSAttentionResult(x, found)


def apply_norm(norm: nn.Module, x: Tensor, segments: Tensor | None) -> Tensor:
    """Batch norm must know what is padding; a norm of each token alone need not."""
    return norm(x, segments) if isinstance(norm, SequenceBatchNorm) else norm(x)
