"""Classification data, and its corruption: wrong labels by two patterns, and outliers.

Letters: S seeds, N points, D features. Every seed has points of its own. Training and validation data are corrupted
alike, test data never.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from longshort.data.tasks.loaders import read_arrays

CLASSES = 10
OUTLIER_REACH = 10.0
"""An outlier is a point moved this many times as far from the centre, with a wrong label."""
MIXTURE_FEATURES, MIXTURE_COMPONENTS, MIXTURE_SPREAD = 20, 3, 1.3
_IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Split(NamedTuple):
    """Points and labels."""

    x: Tensor
    """(S, N, D) float32"""
    y: Tensor
    """(S, N) int64"""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One data set, drawn once for each seed; features are standardised with the training points of the seed."""

    name: str
    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What is wrong with the data."""

    kind: str
    """clean, symmetric (any other class), asymmetric (the next class) or outliers."""
    share: float
    """Of the points."""

    @property
    def name(self) -> str:
        return "clean" if self.kind == "clean" else f"{self.kind} {self.share:.0%}"


def corrupted(split: Split, condition: Condition, seeds: Sequence[int]) -> Split:
    """The split with a share of its points spoilt; which ones depends on the seed alone, so that losses can be paired.

    >>> split = Split(torch.zeros(1, 1000, 2), torch.zeros(1, 1000, dtype=torch.long))
    >>> wrong = corrupted(split, Condition(kind="asymmetric", share=0.4), [0]).y
    >>> bool(350 < (wrong == 1).sum() < 450), int(wrong.max())
    (True, 1)
    """
    x, y = split.x.clone() if condition.kind == "outliers" else split.x, split.y.clone()
    for place, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(7919 * seed + len(y[place]))
        chosen = (torch.rand(len(y[place]), generator=generator) < condition.share).to(y.device)
        jump = torch.randint(1, CLASSES, (len(y[place]),), generator=generator).to(y.device)
        if condition.kind == "asymmetric":
            jump = torch.ones_like(jump)
        y[place] = torch.where(chosen, (y[place] + jump) % CLASSES, y[place])
        if condition.kind == "outliers":
            x[place] = torch.where(chosen[:, None], OUTLIER_REACH * x[place], x[place])
    return Split(x, y)


def mixture(seeds: Sequence[int], sizes: Sequence[int], features: int = MIXTURE_FEATURES) -> Dataset:
    """Ten classes of three Gaussian clouds each: not linearly separable, and nearly separable otherwise."""
    parts = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(104729 + seed)
        centres = MIXTURE_SPREAD * torch.randn(CLASSES, MIXTURE_COMPONENTS, features, generator=generator)
        labels = torch.randint(CLASSES, (sum(sizes),), generator=generator)
        clouds = torch.randint(MIXTURE_COMPONENTS, (sum(sizes),), generator=generator)
        points = centres[labels, clouds] + torch.randn(sum(sizes), features, generator=generator)
        parts.append((points, labels))
    return _dataset("mixture", parts, sizes)


def images(
    path: Path,
    seeds: Sequence[int],
    sizes: Sequence[int],
    *,
    name: str = "mnist",
    side: int = 28,
    whole: bool = False,
) -> Dataset:
    """Images from files; each seed draws its points without repetition.

    They are averaged over 2 x 2 pixels and each pixel is standardised; `whole` ones keep their pixels, which share one
    mean and one scale.
    """
    x_train, y_train, x_test, y_test = (torch.from_numpy(a) for a in read_mnist(path))
    for x, y, least in ((x_train, y_train, sizes[0] + sizes[1]), (x_test, y_test, sizes[2])):
        if (
            x.shape[1:] != (side, side)
            or y.shape != x.shape[:1]
            or len(x) < least
            or not 0 <= y.min() <= y.max() < CLASSES
        ):
            raise ValueError(
                f"--data {path} must hold at least {least} images of {side} x {side} and as many classes from 0 to 9, "
                f"got images {tuple(x.shape)} and classes {tuple(y.shape)}"
            )
    parts = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        held_in = torch.randperm(len(x_train), generator=generator)[: sizes[0] + sizes[1]]
        held_out = torch.randperm(len(x_test), generator=generator)[: sizes[2]]
        pixels = torch.cat((x_train[held_in], x_test[held_out])).float() / 255
        kept = pixels if whole else torch.nn.functional.avg_pool2d(pixels[:, None], 2)
        parts.append((kept.flatten(1), torch.cat((y_train[held_in], y_test[held_out])).long()))
    return _dataset(name, parts, sizes, by_feature=not whole)


def digits(seeds: Sequence[int], sizes: Sequence[int]) -> Dataset:
    """The 1,797 images of 8 x 8 pixels that come with scikit-learn, split anew by each seed."""
    found: Any = import_module("sklearn.datasets").load_digits()
    x, y = torch.from_numpy(found.data).float(), torch.from_numpy(found.target).long()
    total = sum(sizes)
    scaled = [size * min(total, len(x)) // total for size in sizes]
    parts = []
    for seed in seeds:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: sum(scaled)]
        parts.append((x[order], y[order]))
    return _dataset("digits", parts, scaled)


def fingerprint(path: Path) -> str:
    """A digest of images and classes, however they are packed."""
    found = hashlib.sha256()
    for array in read_mnist(path):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def read_mnist(path: Path) -> tuple[np.ndarray[Any, Any], ...]:
    """Training images and labels, test images and labels: from one .npz, or a folder of the four IDX files (or .gz)."""
    if path.is_file() and path.suffix == ".npz":
        return tuple(read_arrays(path, _ARRAYS).values())
    if path.is_dir():
        return tuple(_read_idx(path / name) for name in _IDX_NAMES)
    raise ValueError(f"--data must be an .npz file or a folder with {', '.join(_IDX_NAMES)}, got {path}")


def _read_idx(path: Path) -> np.ndarray[Any, Any]:
    packed = path.with_name(path.name + ".gz")
    if not path.is_file() and not packed.is_file():
        raise ValueError(f"{path}: not found, nor as .gz; --data must name a folder that holds it")
    try:
        content = path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("its first bytes are not those of one")
        dimensions = content[3]
        shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4).tolist()
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
    except (ValueError, IndexError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not an IDX file of bytes, or a truncated one: {error}") from None


def _dataset(
    name: str, parts: Sequence[tuple[Tensor, Tensor]], sizes: Sequence[int], *, by_feature: bool = True
) -> Dataset:
    splits: list[Split] = []
    pieces = []
    for x, y in parts:
        train = x[: sizes[0]]
        # Pixels that are always 0 stay 0, and rarely used ones do not become the largest features.
        scale = train.std(0).clamp_min(0.1 * train.std()) if by_feature else train.std()
        mean = train.mean(0) if by_feature else train.mean()
        pieces.append((((x - mean) / scale).split(list(sizes)), y.split(list(sizes))))
    for part in range(3):
        splits.append(Split(torch.stack([x[part] for x, _ in pieces]), torch.stack([y[part] for _, y in pieces])))
    return Dataset(name=name, train=splits[0], validation=splits[1], test=splits[2])
