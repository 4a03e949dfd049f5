"""Soft thinking: the next input is a mixture of several tokens' embeddings, until an end mark (arXiv 2511.06411).

`SoftThinking` draws the mixtures, `Draws` keeps them for the engine, and a `ThinkingRecord` for whoever looks at them;
`longshort.rl` computes their probabilities.

Shapes: B sequences, T new tokens, V vocabulary, k tokens of a mixture, C width of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from numbers import Integral, Real
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Noise = Literal["gumbel", "none"]

AUTHORS_CLAMP = (-1.5, 3.0)
"""The bounds that the code of arXiv 2511.06411 sets to the noise; its paper has none."""


@dataclass(frozen=True, kw_only=True)
class SoftThinking:
    """How the mixtures of soft thinking are drawn.

    With p the probabilities that `temperature`, `top_k` and `top_p` leave, and noise e, each token has the value
    g = log p + e, and the weight softmax(g / tau) in the mixture. The token of largest weight stands for it.

    >>> thinking = SoftThinking(end=0, top_k=2, noise="none", tau=1.0)
    >>> ids, values = thinking.draw(torch.tensor([0.1, 0.2, 0.3, 0.4]).log()[None])
    >>> ids.tolist(), [round(weight, 3) for weight in thinking.weights(ids, values)[0].tolist()]
    ([[3, 2]], [0.571, 0.429])
    """

    end: int
    """Thinking ends with the mixture in which this token has the largest weight; it enters the model alone."""
    top_k: int = 5
    """Tokens of a mixture; 1 is greedy."""
    top_p: float = 0.95
    """Of the `top_k`, only the most probable that together have this share of their probability."""
    temperature: float = 1.0
    """Divides the logits; above 1 flattens the distribution."""
    tau: float = 0.1
    """Temperature of the mixture: towards 0 it holds a single token."""
    noise: Noise = "gumbel"
    """What is added to log p: "gumbel" (0, 1), with which tau towards 0 is sampling, or "none"."""
    clamp: tuple[float, float] | None = None
    """Bounds of the noise. None keeps the draw unbiased; see `AUTHORS_CLAMP`."""

    def __post_init__(self) -> None:
        if not _is_integer(self.end) or self.end < 0:
            raise ValueError(f"end must be a token, an integer and at least 0, got {self.end!r}")
        if not _is_integer(self.top_k) or self.top_k < 1:
            raise ValueError(f"top_k must be an integer and at least 1, got {self.top_k!r}")
        if not _is_finite(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")
        for name, value in (("temperature", self.temperature), ("tau", self.tau)):
            if not _is_finite(value) or not value > 0:
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise must be {' or '.join(get_args(Noise))}, got {self.noise!r}")
        if self.clamp is not None:
            pair = isinstance(self.clamp, tuple | list) and len(self.clamp) == 2 and all(map(_is_finite, self.clamp))
            if not pair or not self.clamp[0] < self.clamp[1]:
                raise ValueError(f"clamp must be None or a lower and a higher bound, got {self.clamp!r}")

    def truncated(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The k most probable tokens of logits (B, V), and their log p: both (B, k); -inf for what `top_p` drops."""
        values, ids = logits.topk(min(self.top_k, logits.shape[-1]))
        p = _softmax(values, self.temperature)
        p = p.masked_fill(p.cumsum(-1) - p >= self.top_p, 0)
        return ids, (p / p.sum(-1, keepdim=True)).log()

    def draw(self, logits: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The k tokens and the values g of a mixture for each sequence, both (B, k), from logits (B, V)."""
        ids, values = self.truncated(logits)
        if self.noise == "none":
            return ids, values
        tiny = torch.finfo(values.dtype).tiny
        noise = -torch.empty_like(values).exponential_(generator=generator).clamp_(min=tiny).log()
        return ids, values + (noise if self.clamp is None else noise.clamp(*self.clamp))

    def weights(self, ids: Tensor, values: Tensor) -> Tensor:
        """The weights (..., k) of these tokens in their mixture; one-hot where it ends the thinking."""
        mixture = _softmax(values, self.tau)
        largest = values.argmax(-1, keepdim=True)
        alone = torch.zeros_like(mixture).scatter_(-1, largest, 1)
        return torch.where(ids.gather(-1, largest) == self.end, alone, mixture)


def mixed(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """(..., C): the rows of an embedding table (V, C), weighted and summed over the last axis of ids (..., k).

    The result of each mixture is the same to the bit whatever is computed beside it.

    >>> mixed(torch.eye(3), torch.tensor([[2, 0]]), torch.tensor([[0.75, 0.25]]))
    tensor([[0.2500, 0.0000, 0.7500]])
    """
    weights = weights.to(table.dtype)
    parts = (F.embedding(ids[..., i], table) * weights[..., i : i + 1] for i in range(ids.shape[-1]))
    return reduce(torch.add, parts)


class Drawn(Protocol):
    """What an engine keeps of its draws; see `ThinkingRecord`."""

    ids: Tensor
    values: Tensor
    soft: Tensor


class ThinkingRecord:
    """What `generate(..., thinking=..., record=...)` drew while thinking: all that is needed to rebuild its inputs.

    >>> from longshort import GPT, GPTConfig, generate
    >>> model, record = GPT(GPTConfig.preset("tiny")), ThinkingRecord()
    >>> thinking = SoftThinking(end=10, top_k=3)
    >>> tokens = list(generate(model, [[1, 2], [3]], max_new_tokens=4, thinking=thinking, record=record))
    >>> record.ids.shape, record.values.shape, record.soft.shape
    (torch.Size([2, 4, 3]), torch.Size([2, 4, 3]), torch.Size([2, 4]))
    """

    def __init__(self) -> None:
        self._length = 0
        self._drawn: Drawn | None = None

    def __len__(self) -> int:
        return self._length

    def note(self, drawn: Drawn, length: int) -> None:
        """There are this many steps by now."""
        self._drawn, self._length = drawn, length

    @property
    def ids(self) -> Tensor:
        """(B, T, k) tokens of each mixture; they mean nothing where `soft` is False."""
        return self._noted.ids[:, : self._length]

    @property
    def values(self) -> Tensor:
        """(B, T, k) values g of these tokens, from which `SoftThinking.weights` has the weights."""
        return self._noted.values[:, : self._length]

    @property
    def soft(self) -> Tensor:
        """(B, T) where a mixture was drawn, the one that ends the thinking included."""
        return self._noted.soft[:, : self._length]

    @property
    def _noted(self) -> Drawn:
        if self._drawn is None:
            raise ValueError("record must hold at least one step, got none: has generate been iterated over?")
        return self._drawn


def _softmax(x: Tensor, temperature: float) -> Tensor:
    """At any temperature: the largest is 0 first, and what it is divided by neither 0 nor infinite in the dtype."""
    limits = torch.finfo(x.dtype)
    return ((x - x.amax(-1, keepdim=True)) / min(max(temperature, limits.tiny), limits.max)).softmax(-1)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
