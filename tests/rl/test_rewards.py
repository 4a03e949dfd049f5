"""Rewards, and verifiers that raise."""

import math

import numpy as np
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
    assert found.failed == 1 and found.error == "ValueError: a reward must be a number that is finite in fp32, got nan"


@pytest.mark.parametrize("worth", [None, "1", "right", b"1", 1e39, -math.inf, 10**400, [1.0], torch.zeros(2)], ids=repr)
def test_a_reward_that_is_no_number_of_fp32_counts_as_a_failure(worth):
    class Odd(Chains):
        def reward(self, problem, tokens):
            return worth

    found = verified(Odd(), [PROBLEM], [[3]])
    assert found.failed == 1 and found.values.tolist() == [0]
    assert "a reward must be a number that is finite in fp32, got " in found.error


@pytest.mark.parametrize("worth", [1, True, torch.tensor(1.0), torch.ones(1), np.float64(1)], ids=repr)
def test_any_single_number_is_a_reward(worth):
    class Right(Chains):
        def reward(self, problem, tokens):
            return worth

    assert verified(Right(), [PROBLEM], [[3]]).values.tolist() == [1]


def test_a_verifier_that_exits_fails_and_does_not_end_the_run():
    class Leaves(Chains):
        def reward(self, problem, tokens):
            raise SystemExit(0)

    found = verified(Leaves(), [PROBLEM], [[3]])
    assert found.failed == 1 and found.error.startswith("SystemExit: 0 (test_rewards.py, line ")


def test_a_verifier_cannot_change_what_was_drawn():
    class Takes(Chains):
        def reward(self, problem, tokens):
            return float(tokens.pop())

    samples = [[3]]
    assert verified(Takes(), [PROBLEM], samples).values.tolist() == [3] and samples == [[3]]


def test_failures_up_to_the_share_are_allowed_and_more_stop_with_the_first():
    found = verified(Fragile(), [PROBLEM] * 4, [[2], [0], [1], [1]])
    check_failures(found, 0.25)
    with pytest.raises(VerifierError, match=r"raised for 1 of 4 samples, more than rl.failed_share=0.2 allows; .*Zero"):
        check_failures(found, 0.2)
