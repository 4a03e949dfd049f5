"""All losses, conditions and seeds of one data set and one kind of model, trained at once on a CPU.

Letters: L losses, C conditions, S seeds; P = L C S models. Models of one seed start from the same weights and see the
same points in the same order, whatever their loss and condition.
"""

from __future__ import annotations

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
    models = _start(architecture, dataset, variants, conditions, seeds)
    decay = torch.tensor([variant.weight_decay for variant in variants]).repeat_interleave(len(conditions) * len(seeds))
    optimizer = torch.optim.Adam(models, lr=settings.rate, fused=True)
    looks: list[tuple[Tensor, Tensor]] = []
    for epoch in range(1, settings.epochs + 1):
        for batch in _batches(train, settings.batch, epoch, seeds, len(conditions)):
            _step(architecture, models, optimizer, variants, batch, decay=settings.rate * decay)
        if epoch % settings.look_every == 0 or epoch == settings.epochs:
            looks.append((_accuracy(architecture, models, validation), _accuracy(architecture, models, test)))
        if epoch % max(1, settings.epochs // 4) == 0:
            took = time.perf_counter() - start
            message(f"{dataset.name}, {architecture.name}: epoch {epoch} of {settings.epochs}, {took:.0f} s")
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
        **{name: _rounded(values.view(shape)) for name, values in _chosen(looks).items()},
    }


def _chosen(looks: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Per model: the test accuracy at the last measurement, at the first with the highest validation accuracy, and the
    highest of all, which nobody with only noisy data can choose."""
    validation, test = (torch.stack(each) for each in zip(*looks, strict=True))
    stopped = test.gather(0, validation.argmax(0, keepdim=True))[0]
    return {"last": test[-1], "stopped": stopped, "best": test.amax(0)}


def _start(
    architecture: Architecture,
    dataset: Dataset,
    variants: Sequence[LossVariant],
    conditions: Sequence[Condition],
    seeds: Sequence[int],
) -> Parameters:
    of_seeds = architecture.start(dataset.train.x.shape[-1], CLASSES, seeds)
    copies = len(variants) * len(conditions)
    return [p.repeat(copies, *(1,) * (p.ndim - 1)).requires_grad_() for p in of_seeds]


def _stacked(splits: Sequence[Split]) -> Split:
    """(C S, N, D) and (C S, N)"""
    return Split(torch.cat([split.x for split in splits]), torch.cat([split.y for split in splits]))


def _batches(split: Split, size: int, epoch: int, seeds: Sequence[int], conditions: int) -> list[Split]:
    """Each seed's points in an order of its own, reshuffled every epoch; an incomplete last batch is left out."""
    points = split.y.shape[1]
    orders = [
        torch.randperm(points, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch)) for seed in seeds
    ]
    order = torch.stack(orders).repeat(conditions, 1)[:, : points // size * size]
    y = split.y.gather(1, order)
    x = split.x.gather(1, order[..., None].expand(-1, -1, split.x.shape[2]))
    return [Split(*both) for both in zip(x.split(size, 1), y.split(size, 1), strict=True)]


def _step(
    architecture: Architecture,
    models: Parameters,
    optimizer: torch.optim.Optimizer,
    variants: Sequence[LossVariant],
    batch: Split,
    *,
    decay: Tensor,
) -> None:
    scores = architecture.scores(models, batch.x.repeat(len(variants), 1, 1))
    of_variants = scores.view(len(variants), len(batch.y), *scores.shape[1:])
    total = torch.stack([variant.loss(of_variants[i], batch.y) for i, variant in enumerate(variants)]).sum()
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    with torch.no_grad():
        decayed = decay.nonzero()[:, 0]
        for parameter in models:
            if parameter.ndim == 3 and len(decayed):  # as AdamW does: matrices only
                parameter[decayed] *= 1 - decay[decayed, None, None]
    optimizer.step()


@torch.no_grad()
def _accuracy(architecture: Architecture, models: Parameters, split: Split) -> Tensor:
    """(P,) shares of points that each model gets right."""
    copies = len(models[0]) // len(split.y)
    right = torch.zeros(len(models[0]))
    for x, y in zip(split.x.split(_SCORED, 1), split.y.split(_SCORED, 1), strict=True):
        answers = architecture.scores(models, x.repeat(copies, 1, 1)).argmax(-1)
        right += (answers == y.repeat(copies, 1)).sum(-1)
    return right / split.y.shape[1]


def _rounded(values: Tensor) -> list[Any]:
    return [[[round(v, 4) for v in seeds] for seeds in conditions] for conditions in values.tolist()]
