"""What is drawn after the prompts, step after step, in tensors that stay where they are.

A step reads and writes tensors alone, its own number included, so that it can be part of a CUDA graph.

Shapes: B sequences, T new tokens, V vocabulary, k tokens of a mixture, C width of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.generation.sampling import Sampling
from longshort.generation.soft import SoftThinking

ENDED = -1
"""What a sequence that has ended yields while others continue."""


def tokens_of(prompts: Tensor, real: Tensor, vocabulary: int) -> Tensor:
    """(B, V) which tokens each of the prompts (B, P) holds, where they are not padding.

    >>> tokens_of(torch.tensor([[2, 0, 2]]), torch.tensor([[False, True, True]]), 3)
    tensor([[ True, False,  True]])
    """
    held = torch.zeros(len(prompts), vocabulary + 1, dtype=torch.bool, device=prompts.device)
    return held.scatter_(1, prompts.where(real, vocabulary), True)[:, :vocabulary]


class Draws:
    """Tokens, or mixtures of them, for a batch of sequences, and which of these have ended."""

    def __init__(
        self,
        batch: int,
        count: int,
        *,
        sampling: Sampling,
        thinking: SoftThinking | None,
        stops: Sequence[int],
        vocabulary: int,
        device: torch.device,
        generator: torch.Generator | None = None,
        table: Tensor | None = None,
        log_probs: bool = False,
    ) -> None:
        """`table` (V, C) is that of the embeddings; mixtures need it.

        With `log_probs`, those of what is drawn are kept, before the sampling narrows the choice of discrete tokens.
        """
        self._sampling, self._thinking, self._vocabulary, self._generator = sampling, thinking, vocabulary, generator
        self._stops = torch.tensor(stops, dtype=torch.long, device=device) if stops else None
        self._next = torch.zeros(1, dtype=torch.long, device=device)
        """The column that the next step fills."""
        self.tokens = torch.full((batch, count), ENDED, dtype=torch.long, device=device)
        """(B, T) tokens drawn; `ENDED` after a sequence has ended."""
        self.ended = torch.zeros(batch, dtype=torch.bool, device=device)
        """(B,)."""
        self._seen: Tensor | None = None
        k = 0 if thinking is None else min(thinking.top_k, vocabulary)
        self.ids = torch.zeros(batch, count, k, dtype=torch.long, device=device)
        """(B, T, k) tokens of each mixture; they mean nothing where `soft` is False."""
        self.values = torch.zeros(batch, count, k, dtype=torch.float32, device=device)
        """(B, T, k) values of these tokens, from which `SoftThinking.weights` has the weights."""
        self.soft = torch.zeros(batch, count, dtype=torch.bool, device=device)
        """(B, T) where a mixture was drawn, the one that ends the thinking included."""
        self.noise: Tensor | None = None
        """(B, T, C) Gaussian noise of the mixtures' embeddings."""
        self._table, self._entering = table, torch.zeros(batch, 1, dtype=torch.long, device=device)
        """What enters the model next: tokens, or embeddings if there are mixtures."""
        if thinking is not None:
            assert table is not None
            self._entering = table.new_zeros(batch, 1, table.shape[1])
            if thinking.noise == "gaussian":
                self.noise = table.new_zeros(batch, count, table.shape[1])
        self.log_probs = torch.zeros(batch, count, dtype=torch.float32, device=device) if log_probs else None
        """(B, T) log-probabilities of tokens, log-densities of mixtures; 0 after a sequence has ended."""
        self._thinks = torch.full((batch,), thinking is not None, device=device)

    def reset(self) -> None:
        """Begin again, in the same memory."""
        self._next.zero_()
        self.tokens.fill_(ENDED)
        self.ended.zero_()
        self.soft.zero_()
        self._thinks.fill_(self._thinking is not None)

    def note_prompt(self, seen: Tensor) -> None:
        """These tokens (B, at least V) stand in the prompts, and are penalised if the sampling does that."""
        if self._sampling.repetition_penalty != 1:
            self._seen = seen[:, : self._vocabulary].contiguous()

    def step(self, logits: Tensor) -> Tensor:
        """Draw from logits (B, at least V) what comes next; returns the tokens (B,), `ENDED` for those that had."""
        logits = logits[:, : self._vocabulary]
        chosen = self._sampling.draw(logits, seen=self._seen, generator=self._generator)
        score = self._token_score(logits, chosen) if self.log_probs is not None else None
        if self._thinking is None:
            self._entering.copy_(chosen[:, None])
        else:
            chosen, score = self._mix(self._thinking, logits, chosen, score)
        if self.log_probs is not None and score is not None:
            self.log_probs.index_copy_(1, self._next, score.masked_fill(self.ended, 0)[:, None])
        if self._seen is not None:
            self._seen.scatter_(1, chosen[:, None], True)
        shown = chosen.masked_fill(self.ended, ENDED)
        self.tokens.index_copy_(1, self._next, shown[:, None])
        if self._stops is not None:
            self.ended.logical_or_((chosen[:, None] == self._stops).any(-1))
            self._thinks.logical_and_(~self.ended)
        self._next.add_(1)
        return shown

    def _token_score(self, logits: Tensor, chosen: Tensor) -> Tensor:
        log_p = (logits / self._sampling.temperature).log_softmax(-1)
        return log_p.gather(-1, chosen[:, None])[:, 0]

    def _mix(
        self, thinking: SoftThinking, logits: Tensor, chosen: Tensor, score: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Draw mixtures; where sequences think, their tokens and scores replace those of discrete tokens."""
        ids, log_p = thinking.truncated(logits)
        values, noise = thinking.values(log_p, generator=self._generator), None
        token = thinking.token(ids, values)
        for held, new in ((self.ids, ids), (self.values, values), (self.soft, self._thinks)):
            held.index_copy_(1, self._next, new[:, None])
        if self.noise is not None:
            noise = thinking.embedding_noise(self.noise[:, 0], generator=self._generator)
            self.noise.index_copy_(1, self._next, noise[:, None])
        chosen = torch.where(self._thinks, token, chosen)
        if score is not None:
            score = torch.where(self._thinks, thinking.log_density(ids, values, log_p, noise).float(), score)
        self._entering.copy_(self._embedded(thinking, chosen, self._thinks, ids, values, noise)[:, None])
        self._thinks.logical_and_(token != thinking.end)
        return chosen, score

    def _embedded(
        self,
        thinking: SoftThinking,
        tokens: Tensor,
        soft: Tensor,
        ids: Tensor,
        values: Tensor,
        noise: Tensor | None,
    ) -> Tensor:
        """(..., C): the mixtures where `soft` (...), else the tokens."""
        assert self._table is not None
        mixtures = thinking.inputs(self._table, ids, values, noise)
        return torch.where(soft[..., None], mixtures, F.embedding(tokens, self._table))

    def end(self, sequences: Sequence[int]) -> None:
        """These have ended with what they drew last."""
        self.ended[list(sequences)] = True
        self._thinks.logical_and_(~self.ended)

    def last_input(self) -> dict[str, Tensor]:
        """The last draw as `GPT.forward` takes it."""
        return {"tokens" if self._thinking is None else "embeddings": self._entering}

    def inputs(self, first: int, stop: int) -> dict[str, Tensor]:
        """Draws `first` to `stop` as `GPT.forward` takes them."""
        tokens = self.tokens[:, first:stop].clamp(min=0)  # what follows an end is seen by nobody
        if self._thinking is None:
            return {"tokens": tokens}
        soft, ids, values = (x[:, first:stop] for x in (self.soft, self.ids, self.values))
        noise = None if self.noise is None else self.noise[:, first:stop]
        return {"embeddings": self._embedded(self._thinking, tokens, soft, ids, values, noise)}
