"""The settings of the loss: what they refuse, and that logits and loss follow them."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from longshort.losses import LossSettings


def test_they_are_frozen_and_go_to_plain_values_and_back():
    settings = LossSettings(exponent=0.5, linear_below=0.02, z_loss=1e-4, chunk=7)
    assert LossSettings.from_dict(settings.to_dict()) == settings
    assert LossSettings.from_dict({"z_loss": 1e-4}) == LossSettings(z_loss=1e-4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.exponent = 1.0


def test_the_loss_is_cross_entropy_of_the_transformed_scores_and_in_training_the_z_loss():
    settings = LossSettings(exponent=0.5, linear_below=0.3, z_loss=0.1, chunk=4)
    hidden, weight = torch.randn(9, 8, dtype=torch.float64), torch.randn(11, 8, dtype=torch.float64)
    targets = torch.randint(11, (9,))
    logits = settings.transform(hidden @ weight.T)
    expected = F.cross_entropy(logits, targets)
    torch.testing.assert_close(settings.cross_entropy(hidden, weight, targets, training=False), expected)
    with_z = expected + 0.1 * logits.logsumexp(-1).square().mean()
    torch.testing.assert_close(settings.cross_entropy(hidden, weight, targets, training=True), with_z)


def test_chunk_reaches_the_loss(monkeypatch):
    given = {}
    monkeypatch.setattr(
        "longshort.losses.settings.linear_cross_entropy", lambda *tensors, **options: given.update(options)
    )
    LossSettings(chunk=7).cross_entropy(torch.randn(9, 8), torch.randn(11, 8), torch.randint(11, (9,)), training=True)
    assert given["chunk"] == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"exponent": 1.5}, "exponent must be a number from 0 to 1, got 1.5"),
        ({"linear_below": 0.0}, "linear_below must be a number from 1e-30 .* got 0.0"),
        ({"z_loss": -1e-4}, "z_loss must be a number from 0 to 1e.30, got -0.0001"),
        ({"z_loss": float("nan")}, "z_loss must be a number from 0 to 1e.30, got nan"),
        ({"chunk": 0}, "chunk must be None or an integer from 1 to 2.63 - 1, got 0"),
        ({"chunk": 2.0}, "chunk must be None or an integer from 1 to 2.63 - 1, got 2.0"),
        ({"exponents": 0.5}, "LossSettings has no field 'exponents'; did you mean exponent\\?"),
    ],
)
def test_a_wrong_value_is_a_clear_error(values, message):
    with pytest.raises(ValueError, match=message):
        LossSettings.from_dict(values)


def test_a_softcap_bounds_the_logits_and_the_loss_follows() -> None:
    settings, scores = LossSettings(logit_softcap=2.0), 5 * torch.randn(6, 9)
    assert settings.changes_scores and not LossSettings().changes_scores and LossSettings(exponent=0.5).changes_scores
    logits = settings.transform(scores)
    torch.testing.assert_close(logits, 2 * (scores / 2).tanh())
    targets = torch.randint(9, (6,))
    loss = settings.cross_entropy(scores, torch.eye(9), targets, training=True)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets))
    assert settings.transform(scores.bfloat16()).dtype == torch.float32
