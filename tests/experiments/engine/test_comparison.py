"""Verdicts rest on the seeds that there are: an interval over several, one difference of one, which is seen once."""

import math

import pytest

from experiments.engine import comparison, measures
from experiments.engine.records import FAILS, HOLDS, NOT_RUN, ONCE, PARTLY, UNDECIDED, Finding, verdict_of


def row(*losses, variant="a", **more):
    known = [loss for loss in losses if loss is not None]
    mean = sum(known) / len(known) if len(known) == len(losses) else None
    return {
        "variant": variant,
        "seeds": list(range(len(losses))),
        "final_losses": list(losses),
        "final_loss": mean,
    } | more


@pytest.mark.parametrize(
    ("mine", "theirs", "lower"),
    [
        (row(3.0), row(3.1), True),
        (row(3.1), row(3.1), False),
        (row(3.0, 3.1, 3.2), row(3.1, 3.2, 3.3001), True),
        (row(3.0, 3.1, 3.2), row(3.1, 3.1, 3.1), None),  # the seeds disagree
        (row(3.1, 3.2, 3.3001), row(3.0, 3.1, 3.2), False),
        (row(3.0, 3.1), row(3.1, None), True),  # not finite is larger than anything
        (row(None), row(None), False),
    ],
)
def test_a_loss_is_lower_where_the_interval_over_common_seeds_says_so(mine, theirs, lower):
    assert comparison.is_lower(mine, theirs) is lower


def test_a_ratio_is_judged_by_its_whole_interval():
    def verdict(*ratios):
        theirs = row(*(4.0 for _ in ratios))
        mine = row(*(4.0 + math.log(ratio) for ratio in ratios))
        return comparison.by_ratio(mine, theirs, holds=0.5, partly=0.98)

    assert verdict(0.4, 0.41, 0.42) == HOLDS
    assert verdict(0.7, 0.71, 0.72) == PARTLY
    assert verdict(1.1, 1.11, 1.12) == FAILS
    assert verdict(0.7, 0.9, 1.3) == UNDECIDED


@pytest.mark.parametrize("verdict", [HOLDS, PARTLY, FAILS])
def test_one_seed_on_either_side_is_seen_once(verdict):
    for seeds in ((1, 1), (3, 1), (1, 3)):
        assert Finding(ours="", verdict=verdict, seeds=seeds).by_seeds().verdict == ONCE[verdict]
    for seeds in ((2, 2), (3, 5), ()):
        assert Finding(ours="", verdict=verdict, seeds=seeds).by_seeds().verdict == verdict
    assert Finding(ours="", verdict=NOT_RUN, seeds=(1, 1)).by_seeds().verdict == NOT_RUN


def test_cases_that_no_seed_decides_leave_a_claim_open_but_not_one_that_holds_partly():
    assert verdict_of([None, None]) == verdict_of([False, None]) == UNDECIDED
    assert verdict_of([True, None]) == verdict_of([True, False, None]) == PARTLY


def test_logits_explode_only_if_those_of_every_seed_do():
    def logits(*largest, lost=0):
        known = [value for value in largest if value is not None]
        return row(*(4.0 for _ in largest), max_logits=list(largest), max_logit=max(known), logits_lost=lost)

    assert comparison.has_exploded(logits(300.0, 201.0)) and comparison.has_exploded(logits(300.0, None, lost=1))
    assert not comparison.has_exploded(logits(300.0, 199.0))
    assert comparison.is_calm(logits(49.0, 30.0)) and not comparison.is_calm(logits(30.0, 51.0))


def test_losses_and_logits_of_earlier_data_are_read_from_their_curves():
    def curve(seed, loss, logit):
        return {"variant": "a", "seed": seed, "validation": [[1, 9.0], [2, loss]], "logits": [[1, logit], [2, 1.0]]}

    old = {"variant": "a", "seeds": [0, 1], "final_loss": 4.5}
    data = measures.completed({"rows": [old], "curves": [curve(1, 5.0, None), curve(0, 4.0, 7.0)]})
    assert data["rows"][0]["final_losses"] == [4.0, 5.0] and data["rows"][0]["max_logits"] == [7.0, None]


def test_a_gap_is_the_mean_over_common_seeds_at_common_steps():
    def curve(variant, seed, *losses):
        return {"variant": variant, "seed": seed, "validation": [[step, loss] for step, loss in enumerate(losses)]}

    runs = [curve("ls", 0, 5.0, 4.0, 3.0), curve("ls", 1, 5.0, 4.0), curve("plain", 0, 5.5, 4.5, None)]
    assert measures.gaps({"curves": runs}, "ls", "plain") == {0: 0.5, 1: 0.5}
    runs += [curve("plain", 1, 5.1, 4.1)]
    assert measures.gaps({"curves": runs}, "ls", "plain") == pytest.approx({0: 0.3, 1: 0.3})
    assert measures.gaps({"curves": runs}, "ls", "nobody") == {}
