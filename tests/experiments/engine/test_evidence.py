"""What seeds show, on made data whose answer is known."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engine import evidence
from experiments.engine.evidence import (
    FAILS,
    HOLDS,
    NOT_RUN,
    ONCE,
    PARTLY,
    TWICE,
    UNDECIDED,
    interval,
    majority,
    paired,
    quantile,
    verdict_of,
)

TRIALS = 4000
numbers = st.floats(-1e6, 1e6)


def made(draw, seeds, *, ahead=0.0, spread=0.02, shared=0.5):
    """Losses by seed of two variants, one of them lower by `ahead`; what a seed does to both is much larger."""
    both = [draw.gauss(4.0, shared) for _ in range(seeds)]
    return ({s: x - less + draw.gauss(0.0, spread) for s, x in enumerate(both)} for less in (ahead, 0.0))


@pytest.mark.parametrize("seeds", [3, 5, 12])
def test_the_interval_covers_the_true_difference_in_95_percent_of_cases(seeds):
    draw = random.Random(seeds)
    found = [paired(*made(draw, seeds, ahead=0.03)) for _ in range(TRIALS)]
    covered = sum(one.low <= -0.03 <= one.high for one in found) / TRIALS
    assert abs(covered - 0.95) < 0.013  # nearly four standard errors


@pytest.mark.parametrize("seeds", [3, 5])
def test_where_nothing_differs_one_case_in_forty_is_called_lower(seeds):
    draw = random.Random(seeds)
    lower = [paired(*made(draw, seeds)).is_below() for _ in range(TRIALS)]
    assert abs(lower.count(True) / TRIALS - 0.025) < 0.01
    assert abs(lower.count(False) / TRIALS - 0.025) < 0.01
    assert lower.count(None) > 0.9 * TRIALS


def test_pairs_decide_what_means_over_other_seeds_could_not():
    draw = random.Random(0)
    found = [paired(*made(draw, 3, ahead=0.3)) for _ in range(200)]
    assert sum(one.is_below() is True for one in found) > 190  # seeds differ by 0.5, pairs by 0.03
    mine, theirs = made(draw, 3, ahead=0.3)
    assert paired(mine, {seed + 3: loss for seed, loss in theirs.items()}) is None


def test_only_seeds_that_both_have_are_compared():
    found = paired({0: 1.0, 1: 2.0, 7: 100.0}, {1: 1.5, 0: 0.75, 8: -100.0})
    assert found.values == (0.25, 0.5) and found.seeds == 2 and found.mean == 0.375


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799)]
)
def test_quantiles_are_those_of_published_tables(freedom, t):
    assert quantile(freedom) == pytest.approx(t, abs=6e-5)


def test_of_two_seeds_both_must_lie_on_one_side():
    assert [interval(values).is_below(2.0) for values in ((1.0, 1.9), (1.0, 3.0), (2.5, 3.0))] == [True, None, False]


@given(numbers)
def test_one_seed_decides_by_its_difference_and_never_undecided(value):
    found = interval([value])
    assert found.low == found.mean == found.high == value
    assert found.is_below() is (value < 0) and found.is_above() is (value > 0)
    assert found.is_at_least(0.0) is (value >= 0) and found.is_at_most(0.0) is (value <= 0)


def test_a_tie_in_every_seed_is_neither_above_nor_below():
    found = paired({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert (found.low, found.high, found.sign()) == (0.0, 0.0, 0)
    assert found.is_below() is found.is_above() is False
    assert found.is_at_least(0.0) is found.is_at_most(0.0) is True


@given(st.lists(numbers, min_size=2, max_size=6), numbers)
def test_opposite_claims_are_decided_oppositely_or_both_left_open(values, bound):
    found = interval(values)
    opposite = {True: False, False: True, None: None}
    assert found.is_at_least(bound) is opposite[found.is_below(bound)]
    assert found.is_at_most(bound) is opposite[found.is_above(bound)]
    assert found.low <= found.mean <= found.high or math.isclose(found.low, found.high)


def test_a_loss_that_is_not_finite_decides_only_if_every_seed_agrees():
    inf = math.inf
    assert paired({0: 3.0, 1: 3.0, 2: 3.0}, {0: inf, 1: inf, 2: inf}).is_below() is True
    assert paired({0: 3.0, 1: 3.0, 2: 3.0}, {0: inf, 1: 3.1, 2: 3.1}).is_below() is None
    assert paired({0: 3.0, 1: inf, 2: 3.0}, {0: inf, 1: 3.0, 2: inf}).sign() == 0
    assert paired({0: inf}, {0: inf}).values == (0.0,)


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.nan]])
def test_what_is_no_number_has_no_interval(values):
    with pytest.raises(ValueError, match="values must be numbers"):
        interval(values)


@pytest.mark.parametrize("verdict", [HOLDS, PARTLY, FAILS])
def test_fewer_than_three_seeds_on_a_side_are_said(verdict):
    for seeds in ((1, 1), (3, 1), (1, 3), (1,), (2, 1)):
        assert evidence.by_seeds(verdict, seeds) == ONCE[verdict]
    for seeds in ((2, 2), (3, 2), (5, 2, 5)):
        assert evidence.by_seeds(verdict, seeds) == TWICE[verdict]
    for seeds in ((3, 3), (3, 5), ()):
        assert evidence.by_seeds(verdict, seeds) == verdict
    for open_ in (NOT_RUN, UNDECIDED):
        assert evidence.by_seeds(open_, (1, 2)) == open_


def test_cases_that_no_seed_decides_leave_a_claim_open_but_not_one_that_holds_partly():
    assert verdict_of([None, None]) == verdict_of([False, None]) == UNDECIDED
    assert verdict_of([True, None]) == verdict_of([True, False, None]) == PARTLY


def test_a_majority_fails_only_where_the_undecided_could_not_change_it():
    assert majority([0, 0, 0]) == majority([1, -1, 0]) == majority([-1, 0, 0]) == UNDECIDED
    assert majority([-1, -1, 0]) == majority([1, -1]) == FAILS
    assert majority([1, 0]) == PARTLY and majority([1, 1]) == HOLDS
