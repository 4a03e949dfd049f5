"""Rewards, and verifiers that raise."""

import math

import pytest
import torch

from longshort.data.problems import Chains, drawn
from longshort.rl.rewards import VerifierError, check_failures, verified


class Fragile(Chains):
    """Divides by the first token, and gives no number for 3."""

    def reward(self, problem, tokens):
        return math.nan if tokens == [3] else 1 / tokens[0]


PROBLEM = drawn(Chains(), "train", 0, 0)


def test_a_sample_whose_verifier_raises_counts_0_and_the_first_error_is_kept():
    found = verified(Fragile(), [PROBLEM] * 4, [[2], [], [0], [4]])
    assert torch.equal(found.values, torch.tensor([0.5, 0.0, 0.0, 0.25]))
    assert (found.failed, found.sample) == (2, 1)
    assert found.error.startswith("IndexError: list index out of range (test_rewards.py, line ")


def test_a_reward_that_is_not_finite_counts_as_a_failure():
    found = verified(Fragile(), [PROBLEM], [[3]])
    assert found.failed == 1 and "a reward must be finite, got nan" in found.error


def test_failures_up_to_the_share_are_allowed_and_more_stop_with_the_first():
    found = verified(Fragile(), [PROBLEM] * 4, [[2], [0], [1], [1]])
    check_failures(found, 0.25)
    with pytest.raises(VerifierError, match=r"raised for 1 of 4 samples, more than rl.failed_share=0.2 allows; .*Zero"):
        check_failures(found, 0.2)
