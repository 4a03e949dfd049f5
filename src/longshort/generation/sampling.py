"""From logits to a token: what may be drawn, and the draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longshort.numeric import is_integral, is_number


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen.

    >>> Sampling(temperature=0.0).draw(torch.tensor([[0.0, 5.0, 1.0]]))
    tensor([1])
    """

    temperature: float = 1.0
    """0 takes the most probable token; above 1 flattens the distribution."""
    top_k: int | None = None
    """Only the k most probable tokens."""
    top_p: float | None = None
    """Only the most probable tokens that together have this probability."""
    min_p: float | None = None
    """Only tokens at least this many times as probable as the most probable one (arXiv 2407.01082)."""
    repetition_penalty: float = 1.0
    """Above 1, tokens seen before are less probable: positive logits are divided by it, negative ones multiplied."""

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not self.temperature >= 0:
            raise ValueError(f"temperature must be a number >= 0, got {self.temperature!r}")
        if self.top_k is not None and (not is_integral(self.top_k) or self.top_k < 1):
            raise ValueError(f"top_k must be None or an integer and at least 1, got {self.top_k!r}")
        if self.top_p is not None and (not is_number(self.top_p) or not 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be None or a number above 0 and at most 1, got {self.top_p!r}")
        if self.min_p is not None and (not is_number(self.min_p) or not 0 <= self.min_p <= 1):
            raise ValueError(f"min_p must be None or a number from 0 to 1, got {self.min_p!r}")
        if not is_number(self.repetition_penalty) or not 1e-6 <= self.repetition_penalty <= 1e6:
            raise ValueError(f"repetition_penalty must be a number from 1e-6 to 1e6, got {self.repetition_penalty!r}")

    def draw(self, logits: Tensor, *, seen: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        """Draw one token for each sequence from logits (B, V); `seen` (B, V) marks the tokens to penalise."""
        if seen is not None and self.repetition_penalty != 1:
            penalty = self.repetition_penalty
            logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        return _drawn(
            logits,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            generator=generator,
        )


def next_token(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one token for each sequence from logits (B, V); see `Sampling`.

    >>> next_token(torch.tensor([[0.0, 5.0, 1.0]]), temperature=0.0)
    tensor([1])
    """
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return sampling.draw(logits, generator=generator)


def _drawn(
    logits: Tensor,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    # In half precision the exponential below can be 0, and 0 / 0 would be drawn.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1:
        # The largest becomes 0: divided by a temperature that is next to nothing, it would be infinite. One that is 0
        # in the logits' precision would make it NaN.
        logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(torch.float32).tiny)
    if top_k is not None and top_k < logits.shape[-1]:
        kth = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        # The first always stays: a top_p that fp32 rounds to 0 would drop it too.
        beyond = (before >= top_p) & (before > 0)
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, beyond)
        logits = logits.masked_fill(drop, -torch.inf)
    probabilities = logits.softmax(-1)
    if min_p is not None:
        least = min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    # What torch.multinomial does for one token, less a check that no CUDA graph can capture.
    return (probabilities / torch.empty_like(probabilities).exponential_(generator=generator)).argmax(-1)
