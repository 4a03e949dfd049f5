"""Small classifiers, many at once: every parameter has a first dimension that counts the models.

Hundreds of small models then cost little more than one: a matrix product becomes a batched one. Letters: P models, b
points, D features, K classes, n tokens, w width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Parameters = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A kind of model: the shapes of its parameters for one model, and its scores for P of them."""

    name: str
    shapes: Callable[[int, int], list[tuple[int, ...]]]
    """From D and K. A matrix is (inputs, outputs) and starts at N(0, 1 / inputs); a vector is a bias, starting at 0."""
    scores: Callable[[Parameters, Tensor], Tensor]
    """From parameters (P, ...) and points (P, b, D) to (P, b, K)."""

    def start(self, features: int, classes: int, seeds: Sequence[int]) -> Parameters:
        """One model for each seed."""
        shapes = self.shapes(features, classes)
        models = []
        for seed in seeds:
            generator = torch.Generator().manual_seed(15485863 + seed)
            models.append([_initial(shape, generator) for shape in shapes])
        return [torch.stack(each) for each in zip(*models, strict=True)]


def _initial(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape)
    return torch.randn(shape, generator=generator) / shape[0] ** 0.5


def _layers(*widths: int) -> Callable[[int, int], list[tuple[int, ...]]]:
    def shapes(features: int, classes: int) -> list[tuple[int, ...]]:
        sizes = (features, *widths, classes)
        return [shape for i, o in itertools.pairwise(sizes) for shape in ((i, o), (o,))]

    return shapes


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias[:, None], x, weight)


def _stack(parameters: Parameters, x: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    for i in range(0, len(parameters), 2):
        x = _linear(x if i == 0 else between(x), *parameters[i : i + 2])
    return x


WIDTH, HEADS, FEED = 24, 2, 48
MOST_TOKENS = 8


def _tokens(features: int) -> int:
    """How many tokens a point is cut into: the largest divisor up to `MOST_TOKENS`."""
    return max(n for n in range(1, MOST_TOKENS + 1) if features % n == 0)


def _transformer_shapes(features: int, classes: int) -> list[tuple[int, ...]]:
    n = _tokens(features)
    attention = [(WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    feed = [(WIDTH, FEED), (FEED,), (FEED, WIDTH), (WIDTH,)]
    return [(features // n, WIDTH), (WIDTH,), (n, WIDTH), *attention, *feed, (WIDTH, classes), (classes,)]


def _transformer(parameters: Parameters, x: Tensor) -> Tensor:
    """One pre-norm block over the pieces of a point, then their mean."""
    embed, embed_bias, places, *block, head, head_bias = parameters
    models, b, features = x.shape
    n = places.shape[1]
    tokens = _linear(x.reshape(models, b * n, features // n), embed, embed_bias).view(models, b, n, WIDTH)
    tokens = (tokens + places[:, None]).view(models, b * n, WIDTH)
    qkv = _linear(_norm(tokens), *block[:2]).view(models * b, n, 3, HEADS, WIDTH // HEADS)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(models, b * n, WIDTH)
    tokens = tokens + _linear(mixed, *block[2:4])
    tokens = tokens + _linear(_linear(_norm(tokens), *block[4:6]).relu(), *block[6:8])
    pooled = _norm(tokens).view(models, b, n, WIDTH).mean(2)
    return _linear(pooled, head, head_bias)


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


ARCHITECTURES = {
    kind.name: kind
    for kind in (
        Architecture(name="linear", shapes=_layers(), scores=lambda p, x: _linear(x, *p)),
        Architecture(name="deep-linear", shapes=_layers(64, 64), scores=lambda p, x: _stack(p, x, lambda y: y)),
        Architecture(name="mlp", shapes=_layers(128), scores=lambda p, x: _stack(p, x, torch.relu)),
        Architecture(name="transformer", shapes=_transformer_shapes, scores=_transformer),
    )
}
