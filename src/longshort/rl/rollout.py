"""Rollouts: what a model drew after its prompts, kept so that the model can be run on the same inputs again.

Shapes: B sequences, P columns of the prompts padded on the left, T new tokens, k tokens of a mixture, C width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longshort.generation import SoftThinking, ThinkingRecord, generate, mixed
from longshort.generation.engine import Prompt
from longshort.model import GPT
from longshort.rl.log_probs import Form, soft_log_probs, token_log_probs


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """Prompts and what was drawn after them; `rollout` makes one."""

    prompts: Tensor
    """(B, P) tokens, padded on the left."""
    padding: Tensor
    """(B,) columns of padding before each prompt."""
    tokens: Tensor
    """(B, T) tokens drawn, for a mixture the one of largest weight; -1 after a sequence has ended."""
    thinking: SoftThinking
    """How the mixtures were drawn."""
    soft: Tensor
    """(B, T) which tokens are mixtures."""
    ids: Tensor
    """(B, T, k) tokens of the mixtures."""
    values: Tensor
    """(B, T, k) their values g; -inf for what top_p dropped."""
    temperature: float
    """Temperature of the discrete tokens."""

    def inputs(self, model: GPT) -> dict[str, Any]:
        """All inputs but the last token, which no prediction follows, as arguments of `GPT.hidden`.

        Gradients reach the embedding table, of which a prediction is a function too, for mixtures as for tokens; the
        weights of a mixture are constants.
        """
        weights = self.thinking.weights(self.ids, self.values)
        drawn = mixed(model.embedding.weight, self.ids[:, :-1], weights[:, :-1])
        single = model.embedding(self.tokens[:, :-1].clamp(min=0))
        drawn = torch.where(self.soft[:, :-1, None], drawn, single)
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
        """(B, T): what the model gives each token, a log-density for mixtures; 0 after the end. Differentiable.

        Mixtures are scored by `soft_log_probs`, in the form "code" with the bounds that their noise had, if any;
        discrete tokens by `token_log_probs` over the whole vocabulary, however the choice was narrowed.
        """
        if model.head is not None and type(model.head) is not nn.Linear:
            raise ValueError(f"model must have a head that is its weight matrix alone, got {type(model.head).__name__}")
        hidden, _ = model.hidden(**self.inputs(model))
        hidden = hidden[:, self.prompts.shape[1] - 1 :].flatten(0, 1)
        loss = model.config.loss
        shared: dict[str, Any] = {"transform": None if loss.exponent == 1 else loss.transform, "chunk": chunk}
        soft = self.soft.flatten().nonzero()[:, 0]
        single = (~self.soft & (self.tokens >= 0)).flatten().nonzero()[:, 0]
        of_soft = soft_log_probs(
            hidden[soft],
            model.head_weight,
            self.ids.flatten(0, 1)[soft],
            self.values.flatten(0, 1)[soft],
            form=form,
            clamp=self.thinking.clamp if form == "code" else None,
            temperature=self.thinking.temperature,
            **shared,
        )
        of_single = token_log_probs(
            hidden[single], model.head_weight, self.tokens.flatten()[single], temperature=self.temperature, **shared
        )
        scored = torch.zeros(len(hidden), dtype=of_single.dtype, device=hidden.device)
        scored = scored.index_put((soft,), of_soft).index_put((single,), of_single)
        return scored.view(self.tokens.shape)


def rollout(
    model: GPT,
    prompts: Prompt,
    thinking: SoftThinking,
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    **options: Any,
) -> Rollout:
    """Think and write after each prompt; `options` are those of `generate`.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> drawn = rollout(model, [[1, 2, 3], [4]], SoftThinking(end=10), max_new_tokens=6, seed=0)
    >>> drawn.tokens.shape, drawn.log_probs(model).shape
    (torch.Size([2, 6]), torch.Size([2, 6]))
    """
    if thinking.noise != "gumbel":
        raise ValueError(f"noise must be gumbel in rollouts, since only it has the density here, got {thinking.noise}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 in rollouts, got {temperature}")
    record = ThinkingRecord()
    drawn = generate(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        thinking=thinking,
        record=record,
        **options,
    )
    rows = [torch.as_tensor(prompt).tolist() for prompt in prompts]
    longest, context = max(map(len, rows)), model.config.context
    if longest + max_new_tokens > context + 1:
        raise ValueError(
            f"prompts and max_new_tokens must fit in the context of {context}, got {longest} and {max_new_tokens}"
        )
    tokens = torch.stack(list(drawn), dim=1)
    device = tokens.device
    return Rollout(
        prompts=torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device),
        padding=torch.tensor([longest - len(row) for row in rows], device=device),
        tokens=tokens,
        thinking=thinking,
        soft=record.soft,
        ids=record.ids,
        values=record.values,
        temperature=temperature,
    )
