"""Problems can be drawn again, splits differ, and the tokens between the marks are found in any list."""

import random

import pytest

from longshort.data.problems import SPLITS, Chains, Frontiers, answer_of, drawn
from longshort.data.problems.problem import shuffled


@pytest.mark.parametrize("task", [Frontiers(n_nodes=12, depth=3), Chains()])
def test_a_problem_depends_on_split_seed_and_number_alone(task):
    first = drawn(task, "train", 3, 5)
    random.seed(0)
    drawn(task, "train", 3, 4)
    assert drawn(task, "train", 3, 5) == first
    others = [("test", 3, 5), ("validation", 3, 5), ("train", 4, 5), ("train", 3, 6), ("train", 35, 0)]
    assert all(drawn(task, *other) != first for other in others)


def test_problems_are_the_same_in_every_version_of_python():
    # Numbers of Python 3.11. A change of how problems are drawn changes every result that names a seed.
    assert drawn(Chains(operations=2), "test", 0, 0).prompt == PINNED_CHAIN
    assert drawn(Frontiers(n_nodes=6, depth=2, targets=1), "test", 0, 0).prompt == PINNED_FRONTIER


PINNED_CHAIN = [899, 997, 6, 998, 2, 1002]
PINNED_FRONTIER = [2, 10, 0, 7, 5, 8, 2, 7, 0, 10, 0, 9, 5, 6, 15, 5, 3]


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match=f"split must be one of {', '.join(SPLITS)}, got 'dev'"):
        drawn(Chains(), "dev", 0, 0)


def test_every_order_is_drawn_equally_often():
    rng, counts = random.Random(0), {}
    for _ in range(6000):
        order = tuple(shuffled("abc", rng))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 and all(880 < count < 1120 for count in counts.values())


@pytest.mark.parametrize("tokens", [[], [8], [9], [8, 1], [1, 2, 9], [9, 8], [8, 1, 9, 1], [-1, None]])
def test_without_both_marks_there_is_no_answer(tokens):
    assert answer_of(tokens, 8, 9) is None


def test_the_answer_begins_after_the_first_end_mark():
    assert answer_of([1, 8, 2, 8, 3, 9], 8, 9) == [2, 8, 3]
    assert answer_of([8, 9], 8, 9) == []
