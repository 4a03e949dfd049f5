"""Signal and noise of policy gradients, against what is known of them."""

import pytest
import torch

from longshort.generation import SoftThinking
from longshort.rl import FORMS, Signal, rollout, score_signal, signal_of

from ..generation.drawn import build


def test_signal_and_noise_are_those_of_the_distribution_that_gradients_are_from():
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([0.3, -0.4, 0.0], dtype=torch.float64)
    gradients = mean + 2 * torch.randn(40_000, 3, dtype=torch.float64, generator=generator)
    found = signal_of(gradients)
    assert found.noise == pytest.approx(12, rel=0.02) and found.signal == pytest.approx(0.25, abs=0.02)
    assert found.ratio == found.signal / found.noise


def test_signal_is_unbiased_for_few_gradients():
    generator = torch.Generator().manual_seed(0)
    found = [signal_of(torch.randn(2, 50, generator=generator) + 0.2).signal for _ in range(500)]
    mean, error = torch.tensor(found).mean().item(), torch.tensor(found).std().item() / 500**0.5
    assert abs(mean - 50 * 0.2**2) < 3 * error < 2  # the biased square is 25 more


def test_a_signal_that_noise_drowns_has_ratio_0_and_one_without_noise_infinity():
    assert Signal(-1.0, 2.0).ratio == 0 and Signal(1.0, 0.0).ratio == float("inf")


@pytest.fixture
def case():
    model = build(vocab_size=40).double()
    drawn = rollout(model, [[1, 2]] * 16, SoftThinking(end=7, tau=1e-6, top_p=1.0), max_new_tokens=6, seed=0)
    return model, drawn, torch.linspace(-1, 1, 16, dtype=torch.float64)


@pytest.mark.parametrize("form", FORMS)
def test_the_signal_of_a_score_is_that_of_the_gradients_of_its_parts(case, form):
    model, drawn, advantages = case
    gradients = []
    for first in range(0, 16, 4):
        part = drawn.part(slice(first, first + 4))
        model.zero_grad()
        (part.log_probs(model, form=form) * advantages[first : first + 4, None]).mean().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    mean = torch.stack(gradients).mean(0)
    noise = torch.stack([(g - mean).square().sum() for g in gradients]).sum().item() / 3
    found = score_signal(model, drawn, advantages, form=form, parts=4)
    assert found.noise == pytest.approx(4 * noise)
    assert found.signal == pytest.approx(mean.square().sum().item() - noise / 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 1}, "parts must be an integer >= 2 that divides the 16 sequences, got 1"),
        ({"parts": 2.0}, r"parts must be an integer >= 2 that divides the 16 sequences, got 2\.0"),
        ({"parts": 3}, "parts must be an integer >= 2 that divides the 16 sequences, got 3"),
        ({"advantages": torch.zeros(16, 1)}, r"advantages must have shape \(16,\), got \(16, 1\)"),
    ],
)
def test_what_cannot_be_measured_is_named(case, options, message):
    model, drawn, advantages = case
    with pytest.raises(ValueError, match=message):
        score_signal(**{"model": model, "drawn": drawn, "advantages": advantages} | options)


def test_one_gradient_has_no_noise():
    with pytest.raises(ValueError, match="gradients must be at least 2, got 1"):
        signal_of([torch.zeros(3)])
