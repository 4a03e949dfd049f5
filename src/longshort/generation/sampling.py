"""Sampling, one token at a time, by a full forward pass over the context for each."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from longshort.model import GPT


def generate(
    model: GPT,
    prompt: Tensor,
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: int | None = None,
) -> Iterator[Tensor]:
    """Yield the next token (B,) of each row of the prompt (B, T), again and again.

    Args:
        temperature: 0 takes the most probable token; above 1 flattens the distribution.
        top_k: sample among the k most probable tokens only.
        top_p: sample among the most probable tokens that together have this probability.
        seed: makes the draw repeatable; the global generator otherwise.
        stop: end when every row has drawn this token.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> tokens = list(generate(model, torch.zeros(1, 1, dtype=torch.long), max_new_tokens=5, seed=0))
    >>> len(tokens), tokens[0].shape
    (5, torch.Size([1]))
    """
    _check(prompt, max_new_tokens, temperature, top_k, top_p)
    generator = None if seed is None else torch.Generator(prompt.device).manual_seed(seed)
    return _draw(model, prompt, max_new_tokens, temperature, top_k, top_p, generator, stop)


@torch.no_grad()
def _draw(
    model: GPT,
    tokens: Tensor,
    count: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
    stop: int | None,
) -> Iterator[Tensor]:
    stopped = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for _ in range(count):
        logits = model(tokens[:, -model.config.context :]).logits[:, -1].float()
        chosen = next_token(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        tokens = torch.cat((tokens, chosen[:, None]), dim=1)
        yield chosen
        if stop is not None:
            stopped |= chosen == stop
            if bool(stopped.all()):
                return


def next_token(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one token for each row of logits (B, V).

    >>> next_token(torch.tensor([[0.0, 5.0, 1.0]]), temperature=0.0)
    tensor([1])
    """
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        kth = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]


def _check(prompt: Tensor, count: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if prompt.ndim != 2 or prompt.shape[1] < 1:
        raise ValueError(f"prompt must have shape (batch, at least one token), got {tuple(prompt.shape)}")
    if count < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {count}")
    if temperature < 0:
        raise ValueError(f"temperature must be >= 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be None or at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be None or above 0 and at most 1, got {top_p}")
