"""All losses, conditions and seeds of one data set and one kind of model, trained at once.

Letters: L losses, C conditions, S seeds; X = C S sets of points and P = L X models. Models of one seed start from the
same weights and see the same points in the same order, whatever their loss, rate and condition.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.label_noise.data import CLASSES, Condition, Dataset, Split, corrupted
from experiments.label_noise.losses import LossVariant
from experiments.label_noise.models import Architecture, Parameters

_SCORED = 250
"""How many points of each model are scored at a time."""
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How every model is trained."""

    epochs: int
    batch: int = 100
    rate: float = 3e-3
    """Of Adam, constant."""
    look_every: int = 2
    """Epochs between measurements of validation and test accuracy; early stopping chooses among them."""


def train_all(
    dataset: Dataset,
    architecture: Architecture,
    variants: Sequence[LossVariant],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
    settings: Settings,
    message: Callable[[str], None],
) -> dict[str, Any]:
    """Test accuracies [loss][condition][seed]: at the last epoch, where early stopping would stop, and the best."""
    start = time.perf_counter()
    train, validation = (
        _stacked([corrupted(split, condition, seeds) for condition in conditions])
        for split in (dataset.train, dataset.validation)
    )
    test = _stacked([dataset.test] * len(conditions))
    looks = fit(
        architecture,
        variants,
        [settings.rate] * len(variants),
        train,
        (validation, test),
        seeds,
        settings,
        lambda text: message(f"{dataset.name}, {architecture.name}: {text}"),
    )
    shape = (len(variants), len(conditions), len(seeds))
    return {
        "dataset": dataset.name,
        "model": architecture.name,
        "variants": [variant.name for variant in variants],
        "conditions": [{"name": condition.name, **asdict(condition)} for condition in conditions],
        "seeds": list(seeds),
        "sizes": {part: getattr(dataset, part).y.shape[1] for part in ("train", "validation", "test")},
        "settings": asdict(settings),
        "seconds": round(time.perf_counter() - start, 1),
        **{name: _rounded(values.view(shape)) for name, values in read_off(looks).items()},
    }


def fit(
    architecture: Architecture,
    variants: Sequence[LossVariant],
    rates: Sequence[float],
    train: Split,
    looked_at: Sequence[Split],
    seeds: Sequence[int],
    settings: Settings,
    message: Callable[[str], None],
) -> list[list[Tensor]]:
    """Train a model with each variant, at its rate, on each set of points; sets are ordered by condition, then seed.

    Returns the accuracies (P,) on each of the splits that are looked at, look by look.
    """
    start = time.perf_counter()
    sets, device = len(train.y), train.y.device
    models = [
        p.repeat(len(variants) * sets // len(seeds), *(1,) * (p.ndim - 1)).to(device).requires_grad_()
        for p in architecture.start(train.x.shape[-1], CLASSES, seeds)
    ]
    each_rate, each_decay = (
        torch.tensor(values, device=device).repeat_interleave(sets)
        for values in (list(rates), [variant.weight_decay for variant in variants])
    )
    optimizer = Adam(models, each_rate, each_decay)
    looks: list[list[Tensor]] = []
    for epoch in range(1, settings.epochs + 1):
        for batch in _batches(train, settings.batch, epoch, seeds, sets // len(seeds)):
            _step(architecture, models, optimizer, variants, batch)
        if epoch % settings.look_every == 0 or epoch == settings.epochs:
            looks.append([_accuracy(architecture, models, split) for split in looked_at])
        if epoch % max(1, settings.epochs // 4) == 0:
            message(f"epoch {epoch} of {settings.epochs}, {time.perf_counter() - start:.0f} s")
    return looks


def read_off(looks: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
    """Per model: the test accuracy at the last measurement, at the first with the highest validation accuracy, and the
    highest of all, which nobody with only noisy data can choose."""
    validation, test = (torch.stack(each) for each in zip(*looks, strict=True))
    stopped = test.gather(0, validation.argmax(0, keepdim=True))[0]
    return {"last": test[-1], "stopped": stopped, "best": test.amax(0)}


def _stacked(splits: Sequence[Split]) -> Split:
    """(C S, N, D) and (C S, N)"""
    return Split(torch.cat([split.x for split in splits]), torch.cat([split.y for split in splits]))


def _batches(split: Split, size: int, epoch: int, seeds: Sequence[int], conditions: int) -> list[Split]:
    """Each seed's points in an order of its own, reshuffled every epoch; an incomplete last batch is left out."""
    points = split.y.shape[1]
    orders = [
        torch.randperm(points, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch)) for seed in seeds
    ]
    order = torch.stack(orders).repeat(conditions, 1)[:, : points // size * size].to(split.y.device)
    y = split.y.gather(1, order)
    x = split.x.gather(1, order[..., None].expand(-1, -1, split.x.shape[2]))
    return [Split(*both) for both in zip(x.split(size, 1), y.split(size, 1), strict=True)]


def _step(
    architecture: Architecture,
    models: Parameters,
    optimizer: Adam,
    variants: Sequence[LossVariant],
    batch: Split,
) -> None:
    groups = [(loss, len(list(same))) for loss, same in itertools.groupby(variant.loss for variant in variants)]
    sizes = [copies * len(batch.y) for _, copies in groups]  # one call of a loss for all its rates
    scores = architecture.scores(models, batch.x).split(sizes)
    targets = batch.y.repeat(len(variants), 1).split(sizes)
    torch.stack([loss(s, y) for (loss, _), s, y in zip(groups, scores, targets, strict=True)]).sum().backward()
    optimizer.step()


class Adam:
    """Adam with a rate and a decoupled weight decay for each model, which torch's has for a whole tensor alone."""

    def __init__(self, models: Parameters, rates: Tensor, decay: Tensor) -> None:
        self._models, self._rates, self._steps = models, rates, 0
        self._kept = 1 - rates * decay if decay.any() else None
        self._means, self._squares = ([torch.zeros_like(p) for p in models] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        """Take a step and forget the gradients."""
        self._steps += 1
        first, second = (1 - beta**self._steps for beta in _BETAS)
        rates = self._rates / first
        for p, mean, square in zip(self._models, self._means, self._squares, strict=True):
            assert p.grad is not None
            each = (-1, *(1,) * (p.ndim - 1))
            if self._kept is not None and p.ndim == 3:  # as AdamW does: matrices only
                p.mul_(self._kept.view(each))
            mean.lerp_(p.grad, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(p.grad, p.grad, value=1 - _BETAS[1])
            p.addcdiv_(mean * rates.view(each), (square / second).sqrt_().add_(_EPSILON), value=-1)
            p.grad = None


@torch.no_grad()
def _accuracy(architecture: Architecture, models: Parameters, split: Split) -> Tensor:
    """(P,) shares of points that each model gets right."""
    copies = len(models[0]) // len(split.y)
    right = torch.zeros(len(models[0]), device=split.y.device)
    for x, y in zip(split.x.split(_SCORED, 1), split.y.split(_SCORED, 1), strict=True):
        right += (architecture.scores(models, x).argmax(-1) == y.repeat(copies, 1)).sum(-1)
    return (right / split.y.shape[1]).cpu()


def _rounded(values: Tensor) -> list[Any]:
    return [[[round(v, 4) for v in seeds] for seeds in conditions] for conditions in values.tolist()]
