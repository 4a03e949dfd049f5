"""Convolutional networks, many at once, against torch's own; and rates, which noisy validation data alone choose."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from experiments.label_noise import tuned
from experiments.label_noise.data import CLASSES, Condition, Split, corrupted, mixture
from experiments.label_noise.losses import LOSSES
from experiments.label_noise.models import CONVOLUTIONAL, SIDES
from experiments.label_noise.training import Settings, fit
from experiments.label_noise.tuned import COMPARED, EXPONENTIATED, Search, piece, tune

SETTINGS = Settings(epochs=2, batch=20, look_every=1)
SEARCH = Search(rates=(1e-3, 1e-2), seeds=(100,))
E_HALF = next(loss for loss in LOSSES if loss.name == "e 0.5")
NOISY = Condition(kind="symmetric", share=0.4)


def generated(seeds, side=8):
    return mixture(seeds, (60, 40, 50), features=side**2)


def with_convolutions(parameters, x):
    """The scores of one model by torch's convolutions; pixels (b, D)."""
    *layers, head, head_bias = parameters
    side = round(x.shape[1] ** 0.5)
    y = x.view(len(x), 1, side, side)
    for weight, bias, patch in zip(layers[:6:2], layers[1:6:2], SIDES, strict=True):
        kernel = weight.view(patch, patch, y.shape[1], -1).permute(3, 2, 0, 1)
        y = F.conv2d(y, kernel, bias, stride=2, padding=1).relu()
    hidden = y.permute(0, 2, 3, 1).flatten(1) @ layers[6] + layers[7]
    return hidden.relu() @ head + head_bias


@pytest.mark.parametrize("side", [8, 28, 32])
def test_products_of_patches_are_convolutions_and_every_model_sees_its_own_set_of_points(side):
    parameters = [p.repeat(3, *(1,) * (p.ndim - 1)) for p in CONVOLUTIONAL.start(side**2, CLASSES, [0, 1])]
    parameters = [p + 0.1 * torch.randn_like(p) for p in parameters]
    x = torch.randn(2, 3, side**2)
    together = CONVOLUTIONAL.scores(parameters, x)
    assert together.shape == (6, 3, CLASSES)
    for i in range(6):
        alone = with_convolutions([p[i] for p in parameters], x[i % 2])
        torch.testing.assert_close(together[i], alone, atol=1e-4, rtol=1e-4)


def test_half_precision_is_for_hidden_layers_alone():
    parameters = CONVOLUTIONAL.start(64, CLASSES, [0])
    x = torch.randn(1, 9, 64)
    exact, rounded = CONVOLUTIONAL.scores(parameters, x), CONVOLUTIONAL.scores(parameters, x.bfloat16())
    assert 0 < (exact - rounded).abs().max() < 0.02
    assert rounded.dtype == torch.float32 and (rounded != rounded.bfloat16()).any()


def test_points_that_are_no_square_are_an_error():
    with pytest.raises(ValueError, match="features must be the pixels of a square image, got 20"):
        CONVOLUTIONAL.start(20, CLASSES, [0])


def test_a_model_trained_among_others_is_the_one_that_torch_trains_alone():
    kept = {}

    def scores(parameters, x):
        kept["models"] = parameters
        return CONVOLUTIONAL.scores(parameters, x)

    seeds, rates = (0, 1), (3e-3, 1e-3)
    train = corrupted(generated(seeds).train, NOISY, seeds)
    variants = [loss for loss in COMPARED for _ in rates]
    watched = replace(CONVOLUTIONAL, scores=scores)
    fit(watched, variants, rates * len(COMPARED), train, (), seeds, SETTINGS, lambda text: None)

    alone = [p[0].clone().requires_grad_() for p in CONVOLUTIONAL.start(64, CLASSES, (1,))]
    optimizer = torch.optim.Adam(alone, lr=rates[0])
    for epoch in (1, 2):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(1_000_003 + epoch))
        for batch in order.split(20):
            optimizer.zero_grad()
            found = with_convolutions(alone, train.x[1, batch])
            E_HALF.loss(found[None], train.y[1, batch][None]).backward()
            optimizer.step()
    place = 2 * 2 * COMPARED.index(E_HALF) + 1  # by loss, rate, seed
    start = CONVOLUTIONAL.start(64, CLASSES, (1,))
    for together, own, first in zip(kept["models"], alone, start, strict=True):
        torch.testing.assert_close(together[place], own, atol=2e-5, rtol=1e-3)
        assert (own - first[0]).abs().max() > 1e-3


def made(test, share=0.4):
    """A piece whose rates were chosen without any test data being there."""
    tuning = replace(generated(SEARCH.seeds), test=None)
    reported = replace(generated((0, 1)), test=test)
    return piece(tuning, reported, share, (0, 1), SETTINGS, SEARCH, lambda text: None)


def test_choosing_never_looks_at_test_data():
    test = generated((0, 1)).test
    one, other = made(test), made(Split(test.x, (test.y + 1) % CLASSES))
    for choice in ("tuning", "chosen_rates", "chosen_exponents"):
        assert one[choice] == other[choice]
    assert one["last"] != other["last"] and one["stopped"] != other["stopped"]


def test_rates_are_chosen_on_validation_data_as_noisy_as_the_training_data(monkeypatch):
    seen = {}

    def watched(train, validation, *rest):
        seen.update(train=train, validation=validation)
        return tune(train, validation, *rest)

    monkeypatch.setattr(tuned, "tune", watched)
    made(generated((0, 1)).test)
    clean = generated(SEARCH.seeds)
    for part, split in seen.items():
        wrong = (split.y != getattr(clean, part).y).float().mean()
        assert 0.2 < wrong < 0.6 and torch.equal(split.x, getattr(clean, part).x)


def test_accuracies_belong_to_the_rates_that_were_chosen_for_each_end(monkeypatch):
    """Everything is at its best at the first epoch with the high rate and at the last with the low one, but for GCE,
    which always prefers the high one."""
    trained = []

    def looks(architecture, variants, rates, train, looked_at, seeds, *rest):
        trained.append([(variant.name, rate) for variant, rate in zip(variants, rates, strict=True)])
        found = []
        for epoch in (1, 2):
            high = [rate == 1e-2 for rate in rates]
            if epoch == 2:
                high = [h == (v.name == "generalised CE") for h, v in zip(high, variants, strict=True)]
            validation = torch.tensor([0.5 + 0.1 * h * (3 - epoch) for h in high]).repeat_interleave(len(seeds))
            test = torch.tensor([epoch / 10 + rate for rate in rates]).repeat_interleave(len(seeds))
            found.append([validation, test][: len(looked_at)])
        return found

    monkeypatch.setattr(tuned, "fit", looks)
    found = made(generated((0, 1)).test)
    assert found["chosen_rates"]["last"] == {
        loss.name: 1e-2 if loss.name == "generalised CE" else 1e-3 for loss in COMPARED
    }
    assert set(found["chosen_rates"]["stopped"].values()) == {1e-2}
    assert len(trained[0]) == 2 * len(COMPARED) and len(trained[1]) == 2 * len(COMPARED) - 1
    assert found["last"]["generalised CE"] == [0.21, 0.21] and found["last"]["e 0.5"] == [0.201, 0.201]
    assert found["stopped"]["generalised CE"] == found["stopped"]["e 0.5"] == [0.11, 0.11]


def test_the_exponent_of_the_highest_validation_accuracy_is_chosen(monkeypatch):
    def tried(*_):
        of = {loss.name: [0.5, 0.4] for loss in COMPARED}
        return {"last": of | {"e 0.75": [0.2, 0.6]}, "stopped": of | {"e 0.5": [0.51, 0.1], "generalised CE": [1, 1]}}

    monkeypatch.setattr(tuned, "tune", tried)
    assert made(generated((0, 1)).test)["chosen_exponents"] == {"last": "e 0.75", "stopped": "e 0.5"}
    assert set(EXPONENTIATED) < {loss.name for loss in COMPARED}
