"""Losses against their formulas, batched models against plain ones, and early stopping."""

import math

import pytest
import torch
from torch.nn import functional as F

from experiments.label_noise import losses
from experiments.label_noise.data import CLASSES, Condition, corrupted, mixture
from experiments.label_noise.models import ARCHITECTURES
from experiments.label_noise.training import Settings, read_off, train_all

CONDITIONS = (Condition(kind="clean", share=0.0), Condition(kind="symmetric", share=0.4))


def one_by_one(name, s, y):
    """The loss of one point, from its formula."""
    p = s.softmax(-1)
    margin = s[y] - max(s[j] for j in range(len(s)) if j != y)
    values = {
        losses.BASE: -p[y].log(),
        "generalised CE": (1 - p[y] ** 0.7) / 0.7,
        "symmetric CE": -0.1 * p[y].log() + sum(4 * p[j] for j in range(len(s)) if j != y),
        "bootstrap": -0.8 * p[y].log() - 0.2 * p.max().log(),
        "ramp": (1 - margin).clamp(0, 2),
        "temperature 4": -(s / 4).log_softmax(-1)[y],
    }
    return values[name]


@pytest.mark.parametrize("name", [losses.BASE, *losses.RIVALS, "temperature 4"])
def test_a_loss_is_the_sum_over_models_of_its_mean_over_points(name):
    scores, targets = 3 * torch.randn(2, 5, 4, dtype=torch.float64), torch.randint(4, (2, 5))
    (variant,) = [variant for variant in losses.LOSSES if variant.name == name]
    expected = sum(
        torch.stack([one_by_one(name, s, int(y)) for s, y in zip(ss, ys, strict=True)]).mean()
        for ss, ys in zip(scores, targets, strict=True)
    )
    torch.testing.assert_close(variant.loss(scores, targets), expected)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_many_models_at_once_give_the_scores_of_each_alone(name):
    kind = ARCHITECTURES[name]
    parameters = kind.start(20, CLASSES, [0, 1, 2])
    x = torch.randn(3, 7, 20)
    together = kind.scores(parameters, x)
    assert together.shape == (3, 7, CLASSES)
    for i in range(3):
        torch.testing.assert_close(kind.scores([p[i : i + 1] for p in parameters], x[i : i + 1])[0], together[i])


def train_few(variants, conditions=CONDITIONS, seeds=(0, 1), **settings):
    data = mixture(seeds, (60, 20, 40))
    chosen = Settings(**{"epochs": 6, "batch": 20} | settings)
    return train_all(data, ARCHITECTURES["linear"], variants, conditions, seeds, chosen, lambda text: None)


def test_models_trained_together_are_those_trained_alone():
    together = train_few(losses.LOSSES[:3])
    alone = train_few(losses.LOSSES[2:3], CONDITIONS[1:], (1,))
    for key in ("last", "stopped", "best"):
        assert together[key][2][1][1] == alone[key][0][0][0]


def test_a_linear_model_trained_here_is_the_one_that_torch_trains():
    found = train_few(losses.LOSSES[:1], CONDITIONS[1:], (0,), epochs=3, look_every=3)
    data = mixture((0,), (60, 20, 40))
    train = corrupted(data.train, CONDITIONS[1], (0,))
    weight, bias = (p[0].clone().requires_grad_() for p in ARCHITECTURES["linear"].start(20, CLASSES, (0,)))
    optimizer = torch.optim.Adam([weight, bias], lr=3e-3)
    for epoch in range(1, 4):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(20):
            optimizer.zero_grad()
            F.cross_entropy(train.x[0, batch] @ weight + bias, train.y[0, batch]).backward()
            optimizer.step()
    right = (data.test.x[0] @ weight + bias).argmax(-1) == data.test.y[0]
    assert found["last"][0][0][0] == pytest.approx(right.float().mean().item(), abs=1e-4)


def test_weight_decay_shrinks_the_weights_of_its_own_loss_alone(monkeypatch):
    kept = {}
    kind = ARCHITECTURES["linear"]

    def scores(parameters, x):
        kept["weight"] = parameters[0]
        return kind.scores(parameters, x)

    watched = type(kind)(name="linear", shapes=kind.shapes, scores=scores)
    variants = [variant for variant in losses.LOSSES if variant.name in (losses.BASE, "weight decay 1")]
    data = mixture((0,), (60, 20, 40))
    train_all(data, watched, variants, CONDITIONS[:1], (0,), Settings(epochs=20, batch=20), lambda text: None)
    base, decayed = kept["weight"].norm(dim=(1, 2)).tolist()
    assert decayed < 0.97 * base and math.isfinite(base)


def test_early_stopping_takes_the_look_of_the_highest_validation_accuracy():
    validation = [torch.tensor([0.5, 0.2]), torch.tensor([0.7, 0.9]), torch.tensor([0.7, 0.1])]
    test = [torch.tensor([0.1, 0.8]), torch.tensor([0.2, 0.3]), torch.tensor([0.9, 0.4])]
    chosen = read_off(list(zip(validation, test, strict=True)))
    assert chosen["stopped"].tolist() == pytest.approx([0.2, 0.3])  # the first of equals
    assert chosen["last"].tolist() == pytest.approx([0.9, 0.4])
    assert chosen["best"].tolist() == pytest.approx([0.9, 0.8])
