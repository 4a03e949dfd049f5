"""Rollouts: what a model drew after its prompts, kept so that the model can be run on the same inputs again.

Shapes: B sequences, P columns of the prompts padded on the left, T new tokens, k tokens of a mixture, C width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from longshort.generation import SoftThinking
from longshort.generation.arguments import check_table
from longshort.model import GPT
from longshort.rl.log_probs import (
    Form,
    Scores,
    check_form,
    gaussian_log_probs,
    soft_log_probs,
    token_log_probs,
    token_scores,
)
from longshort.rl.objective import kl_estimate


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """Prompts and what was drawn after them; `rollout` makes one."""

    prompts: Tensor
    """(B, P) tokens, padded on the left."""
    padding: Tensor
    """(B,) columns of padding before each prompt."""
    tokens: Tensor
    """(B, T) tokens drawn, for a mixture the one of largest weight; -1 after a sequence has ended."""
    thinking: SoftThinking | None
    """How the mixtures were drawn; None if there are none."""
    soft: Tensor
    """(B, T) which tokens are mixtures."""
    ids: Tensor
    """(B, T, k) tokens of the mixtures; k is 0 if there are none."""
    values: Tensor
    """(B, T, k) their values g; -inf for what top_p dropped."""
    temperature: float
    """Temperature of the discrete tokens."""
    noisy: Tensor | None = None
    """(B, T, C) what entered the model for each mixture with Gaussian noise; None for other noise."""
    drawn_log_probs: Tensor | None = None
    """(B, T) log-probabilities in the form "paper" as they were when drawing, if they were kept; see `gap`."""

    @property
    def mask(self) -> Tensor:
        """(B, T) which places hold a token: all up to the end of each sequence, its stop token included."""
        return self.tokens >= 0

    def part(self, sequences: slice | Tensor) -> Rollout:
        """The rollout of some of its sequences, as one minibatch takes it.

        >>> from longshort import GPTConfig
        >>> from longshort.rl import rollout
        >>> drawn = rollout(GPT(GPTConfig.preset("tiny")), [[1], [2], [3]], None, max_new_tokens=4)
        >>> drawn.part(slice(0, 2)).tokens.shape
        torch.Size([2, 4])
        """
        if not isinstance(sequences, slice | Tensor):
            raise ValueError(f"sequences must be a slice or a tensor of places, such as slice(0, 2), got {sequences!r}")
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: held[name][sequences] for name in held if isinstance(held[name], Tensor)})

    def inputs(self, model: GPT) -> dict[str, Any]:
        """All inputs but the last token, which no prediction follows, as arguments of `GPT.hidden`.

        Gradients reach the embedding table, of which a prediction is a function too, for mixtures as for tokens; the
        weights of a mixture are constants. With Gaussian noise the inputs of mixtures are constants as a whole.
        """
        if self.thinking is not None:
            check_table(model.embedding)
        drawn = model.embedding(self.tokens[:, :-1].clamp(min=0))
        if self.thinking is not None and self.noisy is None:
            mixtures = self.thinking.inputs(model.embedding.weight, self.ids[:, :-1], self.values[:, :-1])
            drawn = torch.where(self.soft[:, :-1, None], mixtures, drawn)
        elif self.thinking is not None and self.noisy is not None:
            noisy = self.soft & (self.tokens != self.thinking.end)
            drawn = torch.where(noisy[:, :-1, None], self.noisy[:, :-1], drawn)
        embeddings = torch.cat((model.embedding(self.prompts), drawn), dim=1)
        if not self.padding.any():
            return {"embeddings": embeddings}
        column = torch.arange(embeddings.shape[1], device=embeddings.device)
        padding = self.padding[:, None]
        return {
            "embeddings": embeddings,
            "segments": torch.where(column < padding, -1, 0),
            "positions": (column - padding).clamp(min=0),
        }

    def log_probs(self, model: GPT, *, form: Form = "paper", chunk: int | None = None) -> Tensor:
        """The log-probabilities of `scores` alone."""
        return self.scores(model, form=form, chunk=chunk).log_probs

    def scores(self, model: GPT, *, form: Form = "paper", entropy: bool = False, chunk: int | None = None) -> Scores:
        """What the model gives each token, each (B, T): log-probabilities, and entropies if asked for; 0 after the end.

        Mixtures are scored by `soft_log_probs`, in the form "code" with the bounds that their noise had, if any. Those
        with Gaussian noise are scored by `gaussian_log_probs` whatever the form, and by 0 where they end the thinking,
        since the end mark enters without noise. Discrete tokens are scored by `token_log_probs` over the whole
        vocabulary, however the choice was narrowed. The entropy is that of the whole vocabulary at the temperature of
        the draw, before top_k and top_p, for mixtures too.

        >>> from longshort import GPTConfig
        >>> from longshort.rl import rollout
        >>> model = GPT(GPTConfig.preset("tiny"))
        >>> drawn = rollout(model, [[1, 2, 3], [4]], None, max_new_tokens=6)
        >>> log_probs, entropy = drawn.scores(model, entropy=True)
        >>> log_probs.shape, entropy.shape
        (torch.Size([2, 6]), torch.Size([2, 6]))
        """
        check_form(form)
        if model.head is not None and type(model.head) is not nn.Linear:
            raise ValueError(f"model must have a head that is its weight matrix alone, got {type(model.head).__name__}")
        if model.head is not None and model.head.bias is not None:
            raise ValueError("model must have a head without a bias, got Linear with one")
        hidden, _ = model.hidden(**self.inputs(model))
        hidden = hidden[:, self.prompts.shape[1] - 1 :].flatten(0, 1)
        loss = model.config.loss
        options: dict[str, Any] = {"transform": loss.transform if loss.changes_scores else None, "chunk": chunk}
        parts = [self._of_tokens(hidden, model.head_weight, entropy, options)]
        if self.thinking is not None:
            parts.append(self._of_mixtures(hidden, model, form, entropy, options))
        scored, entropies = (torch.zeros_like(hidden[:, 0], dtype=parts[0][1].log_probs.dtype) for _ in range(2))
        for places, scores in parts:
            scored = scored.index_put((places,), scores.log_probs)
            if scores.entropy is not None:
                entropies.index_put_((places,), scores.entropy)
        shape = self.tokens.shape
        return Scores(scored.view(shape), entropies.view(shape) if entropy else None)

    def _of_tokens(
        self, hidden: Tensor, weight: Tensor, entropy: bool, options: dict[str, Any]
    ) -> tuple[Tensor, Scores]:
        """Where the discrete tokens are in (B * T), and their scores."""
        places = (~self.soft & self.mask).flatten().nonzero()[:, 0]
        drawn = (hidden[places], weight, self.tokens.flatten()[places])
        options = options | {"temperature": self.temperature}
        return places, token_scores(*drawn, **options) if entropy else Scores(token_log_probs(*drawn, **options), None)

    def _of_mixtures(
        self, hidden: Tensor, model: GPT, form: Form, entropy: bool, options: dict[str, Any]
    ) -> tuple[Tensor, Scores]:
        """Where the mixtures are in (B * T), and their scores."""
        assert self.thinking is not None
        if self.thinking.noise == "none":
            raise ValueError("noise must be gumbel or gaussian for mixtures to have a score, got none")
        weight, places = model.head_weight, self.soft.flatten().nonzero()[:, 0]
        tokens = self.tokens.flatten()[places]
        drawn = (hidden[places], weight, self.ids.flatten(0, 1)[places], self.values.flatten(0, 1)[places])
        options = options | {"temperature": self.thinking.temperature}
        if self.noisy is None:
            bounds = self.thinking.clamp if form == "code" else None
            log_probs = soft_log_probs(*drawn, form=form, clamp=bounds, **options)
        else:
            assert self.thinking.sigma is not None
            density = options | {"table": model.embedding.weight, "sigma": self.thinking.sigma}
            log_probs = gaussian_log_probs(*drawn, self.noisy.flatten(0, 1)[places], **density)
            log_probs = torch.where(tokens == self.thinking.end, 0, log_probs)
        if not entropy:
            return places, Scores(log_probs, None)
        with torch.no_grad():
            whole = token_scores(hidden[places], weight, tokens, **options)
        return places, Scores(log_probs, whole.entropy)

    def mixed_share(self, below: float = 0.9) -> Tensor:
        """The share of mixtures that are not nearly one token: their largest weight is under `below`; 0 if none is.

        The mixture that ends the thinking of a sequence counts, as one token.
        """
        if self.thinking is None:
            return torch.zeros((), device=self.tokens.device)
        largest = self.thinking.weights(self.ids, self.values).amax(-1)
        return ((largest < below) & self.soft).sum() / self.soft.sum().clamp(min=1)

    def gap(self, model: GPT) -> Tensor:
        """The KL divergence per token of the model, as it is replayed, from the one that drew; see `kl_estimate`.

        For the model that drew it is what differs between drawing and replay: caches, kernels and the order of sums.
        """
        if self.drawn_log_probs is None:
            raise ValueError("drawn_log_probs must be kept for the gap, got None")
        with torch.no_grad():
            estimate = kl_estimate(self.drawn_log_probs, self.log_probs(model))
        return (estimate * self.mask).sum() / self.mask.sum().clamp(min=1)
