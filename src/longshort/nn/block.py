"""The pre-LN transformer block: each of attention and MLP reads a normalised copy and adds to the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from longshort.nn.attention import LSAttention, LSAttentionResult, StatsOnRequest
from longshort.nn.layer_cache import CacheLayer
from longshort.nn.norms import SequenceBatchNorm, token_norm
from longshort.nn.sigma_reparam import linear
from longshort.ops.options import Stats

PLACEMENTS = ("pre", "post", "sandwich")


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swiglu": F.silu,
    "geglu": partial(F.gelu, approximate="tanh"),
    "relu2": _squared_relu,
}
GATED = ("swiglu", "geglu")


class MLP(nn.Module):
    """Two linear layers with an activation between them; `hidden` features go into the second.

    `activation` is "gelu" (exact), "gelu_tanh" (GPT-2's approximation), "relu2" (the square of ReLU, arXiv 2109.08668),
    or gated (arXiv 2002.05202): "swiglu" is down(silu(gate) * up) as in Llama, "geglu" the same with gelu_tanh for silu
    as in Gemma. A gated layer holds both matrices in `up`, the rows of gate first: one product reads the input once,
    and sigma-reparametrisation and Muon take the two apart as they do queries, keys and values.
    """

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
        self.activation, self.gated = ACTIVATIONS[activation], activation in GATED
        rows = [hidden, hidden] if self.gated else [hidden]
        self.up = linear(width, rows, bias=bias, sigma_reparam=sigma_reparam)
        self.down = linear(hidden, [width], bias=bias, sigma_reparam=sigma_reparam)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(hidden)
        return self.dropout(self.down(hidden))


class Block(nn.Module):
    """Attention, then MLP, each added to the residual stream; the norms may be replaced by `SequenceBatchNorm`.

    `placement` says where the norms are, f being attention or MLP: "pre" is x + f(norm(x)) (GPT-2, Llama), "post" is
    x + norm(f(x)) (Olmo 2 and 3), "sandwich" is x + norm(f(norm(x))) (Gemma 2 and 3). `norm` is "layer" or "rms".

    >>> import torch
    >>> from longshort import HeadPlan
    >>> block = Block(64, LSAttention(64, HeadPlan.full(4)), MLP(64, 256))
    >>> block(torch.randn(2, 10, 64)).shape
    torch.Size([2, 10, 64])
    """

    if TYPE_CHECKING:
        __call__: StatsOnRequest

    def __init__(
        self,
        width: int,
        attention: LSAttention,
        mlp: MLP,
        *,
        bias: bool = False,
        eps: float = 1e-5,
        norm: str = "layer",
        placement: str = "pre",
        unit_offset: bool = False,
    ) -> None:
        super().__init__()
        if placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, got {placement!r}")
        new_norm = partial(token_norm, norm, width, eps=eps, bias=bias, unit_offset=unit_offset)
        before, after = placement != "post", placement != "pre"
        self.attention_norm = new_norm() if before else None
        self.attention = attention
        self.attention_out_norm = new_norm() if after else None
        self.mlp_norm = new_norm() if before else None
        self.mlp = mlp
        self.mlp_out_norm = new_norm() if after else None

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
        x = x + apply_norm(self.attention_out_norm, attended, segments)
        transformed = self.mlp(apply_norm(self.mlp_norm, x, segments))
        x = x + apply_norm(self.mlp_out_norm, transformed, segments)
        return x if found is None else LSAttentionResult(x, found)


def apply_norm(norm: nn.Module | None, x: Tensor, segments: Tensor | None) -> Tensor:
    """norm(x), or x where there is none. Batch norm must know what is padding; a norm of each token alone need not."""
    if norm is None:
        return x
    return norm(x, segments) if isinstance(norm, SequenceBatchNorm) else norm(x)
