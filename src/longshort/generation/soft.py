"""Soft thinking: the next input is a mixture of several tokens' embeddings, until an end mark (arXiv 2511.06411).

`SoftThinking` draws the mixtures, `Draws` keeps them for the engine, and a `ThinkingRecord` for whoever looks at them;
`longshort.rl` computes their probabilities.

Shapes: B sequences, T new tokens, V vocabulary, k tokens of a mixture, C width of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.numeric import is_integral, is_number

Noise = Literal["gumbel", "gaussian", "none"]

AUTHORS_CLAMP = (-1.5, 3.0)
"""The bounds that the code of arXiv 2511.06411 sets to the noise; its paper has none."""


@dataclass(frozen=True, kw_only=True)
class SoftThinking:
    """How the mixtures of soft thinking are drawn.

    With p the probabilities that `temperature`, `top_k` and `top_p` leave, and noise e, each token has the value
    g = log p + e, and the weight softmax(g / tau) in the mixture. The token of largest weight stands for it.

    With Gaussian noise (arXiv 2509.19170) the weights are p itself, and the noise is added to the mixed embedding; the
    most probable token stands for the mixture.

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
    """Temperature of the mixture: towards 0 it holds a single token. It has no bearing on Gaussian noise."""
    noise: Noise = "gumbel"
    """What is random: "gumbel" (0, 1) on log p, with which tau towards 0 is sampling, "gaussian", or "none"."""
    clamp: tuple[float, float] | None = None
    """Bounds of the Gumbel noise. None keeps the draw unbiased; see `AUTHORS_CLAMP`."""
    sigma: float | None = None
    """Standard deviation of the Gaussian noise on each number of the embedding; see `gaussian_sigma`."""

    def __post_init__(self) -> None:
        if not is_integral(self.end) or self.end < 0:
            raise ValueError(f"end must be a token, an integer and at least 0, got {self.end!r}")
        if not is_integral(self.top_k) or self.top_k < 1:
            raise ValueError(f"top_k must be an integer and at least 1, got {self.top_k!r}")
        if not _is_finite(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")
        for name, value in (("temperature", self.temperature), ("tau", self.tau)):
            if not _is_finite(value) or not value > 0:
                raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise must be gumbel, gaussian or none, got {self.noise!r}")
        if self.clamp is not None:
            pair = isinstance(self.clamp, tuple | list) and len(self.clamp) == 2 and all(map(_is_finite, self.clamp))
            if not pair or not self.clamp[0] < self.clamp[1]:
                raise ValueError(f"clamp must be None or a lower and a higher bound, got {self.clamp!r}")
            if self.noise == "gaussian":
                raise ValueError(f"clamp must be None with noise gaussian, got {self.clamp!r}")
        if self.noise != "gaussian" and self.sigma is not None:
            raise ValueError(f"sigma must be None with noise {self.noise}, got {self.sigma!r}")
        if self.noise == "gaussian" and (not _is_finite(self.sigma) or not self.sigma > 0):
            raise ValueError(f"sigma must be a finite number above 0 with noise gaussian, got {self.sigma!r}")

    def truncated(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The k most probable tokens of logits (B, V), and their log p: both (B, k); -inf for what `top_p` drops."""
        values, ids = logits.topk(min(self.top_k, logits.shape[-1]))
        p = _softmax(values, self.temperature)
        if self.top_p < 1:  # at 1, rounding would drop what the sum has no more room for
            p = p.masked_fill(p.cumsum(-1) - p >= self.top_p, 0)
        return ids, (p / p.sum(-1, keepdim=True)).log()

    def draw(self, logits: Tensor, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The k tokens and the values g of a mixture for each sequence, both (B, k), from logits (B, V)."""
        ids, log_p = self.truncated(logits)
        return ids, self.values(log_p, generator=generator)

    def values(self, log_p: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The values g (..., k) of tokens with these log p: log p itself unless the noise is Gumbel noise."""
        if self.noise != "gumbel":
            return log_p
        tiny = torch.finfo(log_p.dtype).tiny
        noise = -torch.empty_like(log_p).exponential_(generator=generator).clamp_(min=tiny).log()
        return log_p + (noise if self.clamp is None else noise.clamp(*self.clamp))

    def token(self, ids: Tensor, values: Tensor) -> Tensor:
        """(...): the token of largest weight, which stands for the mixture."""
        return ids.gather(-1, values.argmax(-1, keepdim=True))[..., 0]

    def weights(self, ids: Tensor, values: Tensor) -> Tensor:
        """The weights (..., k) of these tokens in their mixture; one-hot where it ends the thinking."""
        mixture = _softmax(values, 1.0 if self.noise == "gaussian" else self.tau)
        largest = values.argmax(-1, keepdim=True)
        alone = torch.zeros_like(mixture).scatter_(-1, largest, 1)
        return torch.where(ids.gather(-1, largest) == self.end, alone, mixture)

    def embedding_noise(self, like: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Gaussian noise for the next inputs, in the shape (B, C), the dtype and on the device of `like`."""
        assert self.sigma is not None
        return torch.empty_like(like).normal_(generator=generator) * self.sigma

    def inputs(self, table: Tensor, ids: Tensor, values: Tensor, noise: Tensor | None = None) -> Tensor:
        """(..., C): what enters the model, from an embedding table (V, C); the end mark enters without its noise."""
        mixtures = mixed(table, ids, self.weights(ids, values))
        if noise is None:
            return mixtures
        return torch.where(
            (self.token(ids, values) == self.end)[..., None], mixtures, mixtures + noise.to(mixtures.dtype)
        )

    def log_density(self, ids: Tensor, values: Tensor, log_p: Tensor, noise: Tensor | None = None) -> Tensor:
        """(...): the log-density with which mixtures were drawn, from these log p (..., k); Gaussian less a constant.

        It is 0 for an end mark that enters without its Gaussian noise.
        """
        if noise is None:
            return gumbel_log_density(values, log_p)
        assert self.sigma is not None
        density = gaussian_log_density(noise, torch.zeros_like(noise), self.sigma)
        return density.masked_fill(self.token(ids, values) == self.end, 0)


def gaussian_sigma(table: Tensor, share: float = 0.33) -> float:
    """The `sigma` that is this share of the root mean square of an embedding table's numbers.

    0.33 is the share of arXiv 2509.19170: the noise of an embedding is then about a third as long as an embedding.

    >>> gaussian_sigma(torch.tensor([[3.0, -4.0], [4.0, 3.0]]), share=2.0)
    7.071067810058594
    """
    return share * table.detach().float().square().mean().sqrt().item()


def gumbel_log_density(values: Tensor, log_p: Tensor, *, clamp: tuple[float, float] | None = None) -> Tensor:
    """(...): the log-density of values g (..., k) drawn with these log p: the sum of -u - exp(-u) with u = g - log p.

    Tokens that `top_p` dropped, of value -inf, do not count. `clamp` bounds u.

    >>> gumbel_log_density(torch.tensor([[-0.7, -torch.inf]]), torch.tensor([[-0.7, -0.7]]))
    tensor([-1.])
    """
    kept = values > -torch.inf
    # Filled before they meet, so that no infinity reaches a gradient.
    u = values.masked_fill(~kept, 0) - log_p.masked_fill(~kept, 0)
    u = u if clamp is None else u.clamp(*clamp)
    return (-u - (-u).exp()).masked_fill(~kept, 0).sum(-1)


def gaussian_log_density(inputs: Tensor, mixtures: Tensor, sigma: float) -> Tensor:
    """(...): the log-density of inputs (..., C) about the mixed embeddings they were drawn from, less a constant.

    It is -|inputs - mixtures|^2 / (2 sigma^2), in fp32, float64 for float64 inputs.

    >>> gaussian_log_density(torch.ones(1, 3), torch.zeros(1, 3), sigma=0.5)
    tensor([-6.])
    """
    distance = (inputs - mixtures).to(torch.promote_types(inputs.dtype, torch.float32))
    return -distance.square().sum(-1) / (2 * sigma**2)


def mixed(table: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """(..., C): the rows of an embedding table (V, C), weighted and summed over the last axis of ids (..., k).

    The result of each mixture is the same to the bit whatever is computed beside it.

    >>> mixed(torch.eye(3), torch.tensor([[2, 0]]), torch.tensor([[0.75, 0.25]]))
    tensor([[0.2500, 0.0000, 0.7500]])
    """
    k, weights = ids.shape[-1], weights.to(table.dtype)
    # One kernel forward, where a sum of k embeddings would take three for each.
    bags = F.embedding_bag(ids.reshape(-1, k), table, per_sample_weights=weights.reshape(-1, k), mode="sum")
    return bags.view(*ids.shape[:-1], table.shape[1])


class Drawn(Protocol):
    """What an engine keeps of its draws; see `ThinkingRecord`."""

    ids: Tensor
    values: Tensor
    soft: Tensor
    noise: Tensor | None


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
    def noise(self) -> Tensor | None:
        """(B, T, C) Gaussian noise of the inputs, which `SoftThinking.inputs` takes; None for other noise."""
        noise = self._noted.noise
        return None if noise is None else noise[:, : self._length]

    @property
    def _noted(self) -> Drawn:
        if self._drawn is None:
            raise ValueError("record must hold at least one step, got none: has generate been iterated over?")
        return self._drawn


def _softmax(x: Tensor, temperature: float) -> Tensor:
    if temperature == 1:
        return x.softmax(-1)
    if 1e-6 <= temperature <= 1e6:
        return (x / temperature).softmax(-1)
    # At any temperature: the largest is 0 first, and what it is divided by neither 0 nor infinite in the dtype.
    limits = torch.finfo(x.dtype)
    return ((x - x.amax(-1, keepdim=True)) / min(max(temperature, limits.tiny), limits.max)).softmax(-1)


def _is_finite(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)
