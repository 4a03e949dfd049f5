"""A classifier of whole sequences, built from the GPT's blocks: mean of the last hidden states, then one linear layer.

Attention is two-sided by default. Padding, marked by negative segments, is seen by nothing and enters no mean.

Shapes: B batch, T tokens per sequence, L layers, H heads, C classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longshort.model.config import GPTConfig
from longshort.model.gpt import GPT
from longshort.model.inputs import check_range, check_tensor
from longshort.nn import RMSNorm, SequenceBatchNorm
from longshort.ops.options import Stats

NORMS = ("layer", "batch")


class ClassifierOutput(NamedTuple):
    """What `SequenceClassifier` returns."""

    logits: Tensor
    """(B, C)."""
    loss: Tensor | None
    """Mean cross-entropy in nats, fp32; None without labels."""
    stats: Tensor | None
    """Extremes of the attention logits, as in `GPTOutput`."""


class SequenceClassifier(nn.Module):
    """Predicts which class a sequence of tokens belongs to.

    Args:
        config: sizes, plans, positions and loss, as for a GPT; `tie_embeddings` has no effect here.
        n_classes: number of classes.
        causal: True keeps each token from seeing what follows it.
        norm: "layer" for the norms of `config`, or "batch" for batch norms in their places, whose statistics are over
            the sequences and all positions that are not padding.

    >>> model = SequenceClassifier(GPTConfig.preset("tiny", positions="none"), n_classes=10)
    >>> tokens, labels = torch.randint(256, (2, 100)), torch.tensor([3, 7])
    >>> output = model(tokens, labels, stats=True)
    >>> output.logits.shape, output.loss.shape, output.stats.shape
    (torch.Size([2, 10]), torch.Size([]), torch.Size([2, 4, 2]))
    """

    def __init__(self, config: GPTConfig, *, n_classes: int, causal: bool = False, norm: str = "layer") -> None:
        super().__init__()
        if not isinstance(config, GPTConfig):
            raise ValueError(f"config must be a GPTConfig, got {type(config).__name__}")
        if not isinstance(n_classes, int) or n_classes < 2:
            raise ValueError(f"n_classes must be an integer >= 2, got {n_classes!r}")
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        self.config, self.n_classes, self.causal = config, n_classes, causal
        # A tied trunk has no output head, which nothing here would use.
        self.trunk = GPT(replace(config, tie_embeddings=True), causal=causal)
        if norm == "batch":
            self._set_batch_norms()
        self.head = nn.Linear(config.width, n_classes, bias=False)
        nn.init.normal_(self.head.weight, std=config.init_std)

    def _set_batch_norms(self) -> None:
        token_norms = (nn.LayerNorm, RMSNorm)
        for owner in (self.trunk, *self.blocks):
            for name in [name for name, module in owner.named_children() if isinstance(module, token_norms)]:
                setattr(owner, name, SequenceBatchNorm(self.config.width, eps=self.config.norm_eps))

    @property
    def exponent(self) -> float:
        """Alias of `config.loss.exponent`."""
        return self.config.loss.exponent

    @property
    def linear_below(self) -> float:
        """Alias of `config.loss.linear_below`."""
        return self.config.loss.linear_below

    @property
    def blocks(self) -> nn.ModuleList:
        return self.trunk.blocks

    @property
    def embedding(self) -> nn.Embedding:
        return self.trunk.embedding

    @property
    def position_embedding(self) -> nn.Embedding | None:
        return self.trunk.position_embedding

    @property
    def gradient_checkpointing(self) -> bool | str:
        """Recompute blocks in the backward pass, as in GPT; not with batch norm, whose means would be updated twice."""
        return self.trunk.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, wanted: bool | str) -> None:
        if wanted and isinstance(self.trunk.norm, SequenceBatchNorm):
            raise ValueError(
                "gradient_checkpointing must be off with norm='batch', whose means would be updated twice per step"
            )
        self.trunk.gradient_checkpointing = wanted

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        stats: Stats = False,
    ) -> ClassifierOutput:
        """Compute the score of each class.

        Args:
            tokens: (B, T) token ids.
            labels: (B,) int64 classes.
            segments: (B, T) integers, negative where a token is padding; None if there is no padding.
            stats: also return the extremes of the attention logits; "max" only the largest, which is cheaper.
        """
        check_tensor("tokens", tokens)
        if labels is not None:
            check_tensor("labels", labels)
        if labels is not None and (labels.dtype != torch.int64 or labels.shape != tokens.shape[:1]):
            raise ValueError(
                f"labels must be int64 of shape ({len(tokens)},), got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if labels is not None:
            check_range("labels", labels, self.n_classes)
        hidden, statistics = self.trunk.hidden(tokens, segments=segments, stats=stats)
        pooled = _mean_of_real(hidden, segments)
        settings, weight, loss = self.config.loss, self.head.weight, None
        if labels is not None:
            loss = settings.cross_entropy(pooled, weight, labels, training=self.training)
        scores = F.linear(pooled, weight)
        logits = settings.transform(scores) if settings.changes_scores else scores
        return ClassifierOutput(logits, loss, statistics)


def _mean_of_real(hidden: Tensor, segments: Tensor | None) -> Tensor:
    """(B, width): the mean over positions that are not padding; zeros for a sequence that is all padding."""
    if segments is None:
        return hidden.mean(1)
    real = (segments >= 0).unsqueeze(-1)
    total = hidden.masked_fill(~real, 0.0).sum(1, dtype=torch.promote_types(hidden.dtype, torch.float32))
    return (total / real.sum(1).clamp(min=1)).to(hidden.dtype)
