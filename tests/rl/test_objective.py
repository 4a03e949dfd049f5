"""The objective against the formulas, token by token."""

import math

import pytest
import torch

from longshort.rl import clipped_objective, group_advantages
from longshort.rl.objective import k3, signal_share

B, T = 4, 5


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    new, old, reference = (
        -torch.rand(B, T, dtype=torch.float64, generator=generator).mul(2).requires_grad_(i == 0) for i in range(3)
    )
    advantages = torch.tensor([1.2, -0.7, 0.0, -2.0], dtype=torch.float64)
    mask = torch.arange(T) < torch.tensor([[5], [3], [1], [4]])
    return new, old, advantages, mask, reference


def direct(new, old, advantages, mask, reference, *, clip, dual_clip, kl):
    """As the formulas are written."""
    total, tokens, clipped = 0.0, 0, 0
    for i in range(B):
        for t in range(T):
            if not mask[i, t]:
                continue
            ratio, a = (new[i, t] - old[i, t]).exp(), advantages[i].item()
            loss = -torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
            outside = ratio.item() > 1 + clip if a > 0 else ratio.item() < 1 - clip
            if dual_clip is not None and a < 0 and loss.item() > -a * dual_clip:
                loss, outside = torch.tensor(-a * dual_clip), True
            d = reference[i, t] - new[i, t]
            total, tokens, clipped = total + loss + kl * (d.exp() - d - 1), tokens + 1, clipped + (outside and a != 0)
    return total / tokens, clipped


@pytest.mark.parametrize("dual_clip", [None, 1.3])
def test_the_loss_and_its_gradient_are_those_of_the_formulas(case, dual_clip):
    new, old, advantages, mask, reference = case
    settings = {"clip": 0.2, "dual_clip": dual_clip, "kl": 0.1}
    got = clipped_objective(new, old, advantages, mask, reference=reference, **settings)
    expected, clipped = direct(*case, **settings)
    torch.testing.assert_close(got.loss, expected)
    assert got.clipped.item() == clipped > 0
    both = (torch.autograd.grad(loss, new)[0] for loss in (got.loss, expected))
    torch.testing.assert_close(*both)


def test_the_dual_clip_acts_on_negative_advantages_alone(case):
    _, old, advantages, mask, _ = case
    far = old + 3
    for sign, differs in ((1.0, False), (-1.0, True)):
        losses = [clipped_objective(far, old, sign * advantages.abs(), mask, dual_clip=c).loss for c in (None, 3.0)]
        assert (losses[0] != losses[1]) == differs


def test_on_the_policy_itself_the_gradient_is_that_of_reinforce(case):
    new, _, advantages, mask, _ = case
    loss = clipped_objective(new, new.detach(), advantages, mask).loss
    plain = -(new * advantages[:, None] * mask).sum() / mask.sum()
    torch.testing.assert_close(torch.autograd.grad(loss, new)[0], torch.autograd.grad(plain, new)[0])


def test_a_denominator_of_ones_own_replaces_the_number_of_tokens(case):
    new, old, advantages, mask, _ = case
    mean = clipped_objective(new, old, advantages, mask).loss
    torch.testing.assert_close(clipped_objective(new, old, advantages, mask, denominator=40.0).loss * 40 / 13, mean)


def test_advantages_are_rewards_over_the_spread_of_their_group():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    got = group_advantages(rewards, 3)
    spread = math.sqrt(1 / 3) + 1e-6  # of 1, 0, 0
    torch.testing.assert_close(got[:3], torch.tensor([2 / 3, -1 / 3, -1 / 3], dtype=torch.float64) / spread)
    assert (got[3:] == 0).all()
    torch.testing.assert_close(group_advantages(rewards, 3, normalise=False)[:3], rewards[:3] - 1 / 3)
    assert signal_share(rewards, 3) == 0.5


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("reward", [0.7, 1000.1])
def test_equal_rewards_have_no_advantage_where_their_mean_is_rounded(reward, normalise):
    assert not group_advantages(torch.full((16,), reward), 8, normalise=normalise).any()


@pytest.mark.parametrize("group", [1, 4, 2.0, -2])
def test_a_group_that_cannot_be_compared_is_named(group):
    with pytest.raises(ValueError, match=f"group must be an integer >= 2 that divides the 6 rewards, got {group}"):
        group_advantages(torch.zeros(6), group)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([1.0, 0.0], r"rewards must be a floating-point tensor \(B,\), got \[1.0, 0.0\]"),
        (torch.tensor([1, 0]), "rewards must be .* got torch.int64 of shape"),
        (torch.zeros(1, 2), r"rewards must be .* of shape \(1, 2\)"),
        (torch.zeros(0), r"rewards must be .* of shape \(0,\)"),
        (torch.tensor([math.nan, 0.0]), "rewards must be finite, got nan"),
    ],
)
def test_rewards_without_advantages_are_named(rewards, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, 2)


def test_the_kl_estimate_of_nearly_equal_models_is_not_lost_to_rounding():
    apart = 1e-4 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    found = k3(torch.zeros(10_000), apart)
    assert found.min() >= 0
    torch.testing.assert_close(found.mean(), apart.square().mean() / 2, rtol=1e-3, atol=0)


def test_the_kl_estimate_is_cut_and_never_overflows():
    apart = torch.tensor([0.0, 1.0, -1.0, 500.0, -500.0])
    expected = torch.tensor([0.0, math.e - 2, 1 / math.e, 10.0, 10.0])
    torch.testing.assert_close(k3(torch.zeros(5), apart), expected)
    mask, advantages = torch.ones(1, 5, dtype=torch.bool), torch.ones(1)
    far = clipped_objective(apart[None], torch.zeros(1, 5), -advantages, mask, reference=-apart[None], kl=1.0)
    assert far.loss.isfinite() and far.kl.isfinite()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advantages": torch.zeros(B, 1)}, r"advantages must have shape \(4,\), got \(4, 1\)"),
        ({"advantages": torch.zeros(1)}, r"advantages must have shape \(4,\), got \(1,\)"),
        ({"old": torch.zeros(1, T)}, r"old must have shape \(4, 5\), got \(1, 5\)"),
        ({"mask": torch.ones(B, 1, dtype=torch.bool)}, r"mask must have shape \(4, 5\), got \(4, 1\)"),
        ({"mask": torch.ones(B, T)}, "mask must be bool, got torch.float32"),
        ({"reference": torch.zeros(T)}, r"reference must have shape \(4, 5\), got \(5,\)"),
        ({"log_probs": torch.zeros(T)}, r"log_probs must have shape \(B, T\), got \(5,\)"),
        ({"clip": 0.0}, "clip must be a finite number above 0, got 0.0"),
        ({"clip": math.nan}, "clip must be a finite number above 0, got nan"),
        ({"dual_clip": 1}, "dual_clip must be a finite number above 1, got 1"),
        ({"kl": -1.0}, "kl must be a finite number >= 0, and 0 without a reference, got -1.0"),
        ({"reference": None, "kl": 0.1}, "kl must be a finite number >= 0, and 0 without a reference, got 0.1"),
    ],
)
def test_what_has_no_objective_is_named(case, change, message):
    given = dict(zip(("log_probs", "old", "advantages", "mask", "reference"), case, strict=True)) | change
    with pytest.raises(ValueError, match=message):
        clipped_objective(**given)
