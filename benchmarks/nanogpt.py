"""The peer of a whole training step: a GPT of the shapes and with the behaviour of nanoGPT's.

Learned positions, no biases, exact GELU, causal SDPA in every head, a head tied to the embedding, all logits at once
and their cross-entropy in fp32. Dropout is 0 and left out. Weights are those of a plain `GPT`, so that both can be
checked to compute the same loss.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.model import GPT, GPTConfig


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.project_in(x).split(width, dim=2)
        )
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return self.project_out(out.transpose(1, 2).contiguous().view(batch, length, width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width, bias=False)
        self.attention = _Attention(width, heads)
        self.second_norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class NanoGPT(nn.Module):
    """A plain GPT of the sizes of `config`, which must have learned positions and no biases.

    >>> config = GPTConfig(vocab_size=50, context=8, n_layers=1, width=16, n_heads=2)
    >>> logits, loss = NanoGPT(config)(torch.zeros(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.long))
    >>> logits.shape, loss.shape
    (torch.Size([2, 8, 50]), torch.Size([]))
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.width
        self.tokens = nn.Embedding(config.vocab_size, width)
        self.positions = nn.Embedding(config.context, width)
        hidden = config.ff_multiplier * width
        self.blocks = nn.ModuleList(_Block(width, config.n_heads, hidden) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The logits (B, T, V) and the mean loss."""
        places = torch.arange(tokens.shape[1], dtype=torch.long, device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1)

    @torch.no_grad()
    def take(self, model: GPT) -> None:
        """Copy the weights of a `GPT` of the same sizes."""
        mine, theirs = list(self.parameters()), list(_in_order(model))
        for parameter, weight in zip(mine, theirs, strict=True):
            parameter.copy_(weight)


def _in_order(model: GPT) -> Iterator[Tensor]:
    """The weights of a GPT in the order of the peer's parameters."""
    assert model.position_embedding is not None
    yield model.embedding.weight
    yield model.position_embedding.weight
    for block in model.blocks:
        yield from block.parameters()
    yield from model.norm.parameters()
    if model.head is not None:
        yield model.head.weight
