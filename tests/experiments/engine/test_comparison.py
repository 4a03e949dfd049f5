"""Verdicts rest on the seeds that there are: an interval over several, one difference of one, which is seen once."""

import math

import pytest

from experiments.engine import comparison, measures
from experiments.engine.evidence import FAILS, HOLDS, PARTLY, UNDECIDED, Difference, by_bounds


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
        (row(3.0), row(None), True),  # not finite is larger than anything
        (row(3.0, 3.1), row(None, None), True),
        (row(3.0, 3.1), row(3.1, None), None),  # one seed of two diverged
        (row(3.0, 3.1, 3.2), {**row(3.1), "seeds": [5]}, None),  # no seed is common
        (row(None), row(None), False),
    ],
)
def test_a_loss_is_lower_where_the_interval_over_common_seeds_says_so(mine, theirs, lower):
    assert comparison.is_lower(mine, theirs) is lower


def test_a_ratio_is_judged_by_its_whole_interval():
    def verdict(*ratios):
        theirs = row(*(4.0 for _ in ratios))
        mine = row(*(4.0 + math.log(ratio) for ratio in ratios))
        return by_bounds(comparison.difference(mine, theirs), holds=math.log(0.5), partly=math.log(0.98))

    assert verdict(0.4, 0.41, 0.42) == HOLDS
    assert verdict(0.7, 0.71, 0.72) == PARTLY
    assert verdict(1.1, 1.11, 1.12) == FAILS
    assert verdict(0.7, 0.9, 1.3) == UNDECIDED


def test_a_run_that_diverged_counts_though_it_stopped_early():
    def against(*losses):
        steps = [9 if loss is not None else 4 for loss in losses]
        rows = [row(3.0, 3.1, 3.2, variant="full", steps=[9, 9, 9]), row(*losses, variant="ladder", steps=steps)]
        return comparison.against_each({"rows": rows}, "full", ("ladder",), "full is lower", lower=True)

    assert against(3.3, 3.4, None).verdict == UNDECIDED  # not "not run yet"
    assert against(None, None, None).verdict == HOLDS
    shorter = row(3.3, 3.4, 3.5, variant="ladder", steps=[9, 9, 4])
    assert not comparison.equal_steps(shorter) and comparison.equal_steps({"seeds": [0, 1], "steps": [9, 9]})


def test_logits_explode_only_if_those_of_every_seed_do():
    def logits(*largest, lost=0):
        known = [value for value in largest if value is not None]
        return row(*(4.0 for _ in largest), max_logits=list(largest), max_logit=max(known), logits_lost=lost)

    assert comparison.has_exploded(logits(300.0, 201.0)) and comparison.has_exploded(logits(300.0, None, lost=1))
    assert not comparison.has_exploded(logits(300.0, 199.0))
    assert comparison.is_calm(logits(49.0, 30.0)) and not comparison.is_calm(logits(30.0, 51.0))
    assert not comparison.is_calm(logits(30.0, None, lost=1)) and not comparison.is_calm(logits(30.0, 50.0))
    unread = row(4.0, max_logits=[None], max_logit=None, logits_lost=0)  # stopped before its first reading
    assert comparison.has_exploded(unread) is None and comparison.is_calm(unread) is None
    assert comparison.has_lower_peak(logits(30.0), unread) is None


def test_largest_logits_are_compared_seed_by_seed():
    def logits(*largest):
        lost = largest.count(None)
        return row(*(4.0 for _ in largest), max_logits=list(largest), max_logit=1.0, logits_lost=lost)

    assert comparison.has_lower_peak(logits(10.0, 11.0, 12.0), logits(100.0, 130.0, 110.0)) is True
    assert comparison.has_lower_peak(logits(10.0, 11.0, 400.0), logits(100.0, 130.0, 110.0)) is None
    assert comparison.has_lower_peak(logits(10.0, 11.0, 12.0), logits(None, None, None)) is True


def test_accuracies_that_are_not_all_there_are_nobodys():
    assert comparison.accuracies_by_seed({"seeds": [0, 4], "accuracies": [0.5]}) == {}


def test_a_gap_is_the_mean_over_common_seeds_at_common_steps():
    def curve(variant, seed, *losses):
        return {"variant": variant, "seed": seed, "validation": [[step, loss] for step, loss in enumerate(losses)]}

    runs = [curve("ls", 0, 5.0, 4.0, 3.0), curve("ls", 1, 5.0, 4.0), curve("plain", 0, 5.5, 4.5, None)]
    assert measures.gaps({"curves": runs}, "ls", "plain") == {0: 0.5, 1: 0.5}
    runs += [curve("plain", 1, 5.1, 4.1)]
    assert measures.gaps({"curves": runs}, "ls", "plain") == pytest.approx({0: 0.3, 1: 0.3})
    assert measures.gaps({"curves": runs}, "ls", "nobody") == {}


def test_the_table_of_all_claims_counts_what_is_too_much_to_name():
    def pairs(*means):
        return {
            f"p{place}": Difference(mean, mean - 0.01, mean + 0.01, (mean,) * 3) for place, mean in enumerate(means)
        }

    few = comparison.judged(pairs(-0.02, -0.03, 0.0), 3, "lower", lower=True)
    assert few.brief == "" and few.ours.startswith("lower: p0 (-0.020, -0.030 to -0.010), p1")
    many = comparison.judged(pairs(-0.02, -0.03, -0.04, -0.05, 0.0, 0.02), 6, "lower", lower=True)
    assert (
        many.brief
        == "lower: 4 of 6 (means of -0.050 to -0.020); the other way round: p5 (+0.020); undecided: p4 (+0.000)"
    )
    assert many.ours.count(" to ") == 6 and many.verdict == PARTLY
