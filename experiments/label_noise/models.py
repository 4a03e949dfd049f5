"""Small classifiers, many at once: every parameter has a first dimension that counts the models.

Hundreds of small models then cost little more than one: a matrix product becomes a batched one. Letters: P models, X
sets of points, b points, D features, K classes, n tokens, w width, c channels.
"""

from __future__ import annotations

import itertools
import math
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
    """From parameters (P, ...) and points (X, b, D) to (P, b, K); model i scores the points of set i % X."""

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


def _for_each(x: Tensor, parameters: Parameters) -> Tensor:
    """(P, b, D)"""
    return x.repeat(len(parameters[0]) // len(x), 1, 1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias[:, None], x, weight)


def _stack(parameters: Parameters, x: Tensor, between: Callable[[Tensor], Tensor]) -> Tensor:
    x = _for_each(x, parameters)
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
    x = _for_each(x, parameters)
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
        Architecture(name="linear", shapes=_layers(), scores=lambda p, x: _linear(_for_each(x, p), *p)),
        Architecture(name="deep-linear", shapes=_layers(64, 64), scores=lambda p, x: _stack(p, x, lambda y: y)),
        Architecture(name="mlp", shapes=_layers(128), scores=lambda p, x: _stack(p, x, torch.relu)),
        Architecture(name="transformer", shapes=_transformer_shapes, scores=_transformer),
    )
}


CHANNELS = (16, 32, 64)
SIDES = (4, 3, 3)
"""Of the convolutions' patches, taken at every second place with a border of one."""
HIDDEN = 128


def _convolutional_shapes(features: int, classes: int) -> list[tuple[int, ...]]:
    side = _side(features)
    convolutions: list[tuple[int, ...]] = []
    for inputs, outputs, patch in zip((1, *CHANNELS[:-1]), CHANNELS, SIDES, strict=True):
        convolutions += [(patch * patch * inputs, outputs), (outputs,)]
        side = (side + 2 - patch) // 2 + 1
    return [*convolutions, (side * side * CHANNELS[-1], HIDDEN), (HIDDEN,), (HIDDEN, classes), (classes,)]


def _convolutional(parameters: Parameters, x: Tensor) -> Tensor:
    """Three strided convolutions and a hidden layer in the dtype of the points, then scores in fp32.

    Convolutions are matrix products of patches: a GPU's own grouped convolutions are slow. The models of one set of
    points share the patches of its images, and so the first product.
    """
    *layers, head, head_bias = parameters
    cast = [p.to(x.dtype) for p in layers]
    (weight, bias), *convolutions, hidden = zip(cast[::2], cast[1::2], strict=True)
    sets, b, features = x.shape
    copies = len(weight) // sets
    images = _patches(x.view(sets, b, _side(features), _side(features), 1), SIDES[0])
    wide = [p.view(copies, sets, -1, CHANNELS[0]).permute(1, 2, 0, 3).flatten(2) for p in (weight, bias)]
    y = torch.baddbmm(wide[1], images.flatten(1, 3), wide[0]).relu()
    y = y.view(*images.shape[:4], copies, CHANNELS[0]).permute(4, 0, 1, 2, 3, 5)
    for (weight, bias), patch in zip(convolutions, SIDES[1:], strict=True):
        patches = _patches(y, patch)
        y = _linear(patches.view(len(weight), -1, patches.shape[-1]), weight, bias).relu()
        y = y.view(*patches.shape[:-1], -1)
    y = _linear(y.view(len(head), b, -1), *hidden).relu()
    return _linear(y.float(), head, head_bias)


def _side(features: int) -> int:
    side = math.isqrt(features)
    if side * side != features:
        raise ValueError(f"features must be the pixels of a square image, got {features}")
    return side


def _patches(images: Tensor, side: int) -> Tensor:
    """From (..., H, W, c) to (..., h, w, side side c)."""
    padded = F.pad(images, (0, 0, 1, 1, 1, 1))
    return padded.unfold(-3, side, 2).unfold(-3, side, 2).movedim(-3, -1).flatten(-3)


CONVOLUTIONAL = Architecture(name="convolutional", shapes=_convolutional_shapes, scores=_convolutional)
"""For images; `ARCHITECTURES` are those of `label-noise`, which take any points."""
