"""The line of a variant over its seeds."""

import numpy as np
import pytest

from longshort.report.seeds import seed_line


def curve(*steps):
    return np.array(steps), np.array([float(step) for step in steps])


@pytest.mark.parametrize("order", [1, -1])
def test_seeds_that_share_no_steps_have_an_empty_line(order):
    line = seed_line([curve(1, 2), curve(5, 6)][::order])
    assert [len(values) for values in line] == [0] * 4


@pytest.mark.parametrize("order", [1, -1])
def test_a_line_begins_where_the_last_seed_does(order):
    line = seed_line([curve(1, 2, 3, 4), curve(3, 4, 5)][::order])
    assert line.steps.tolist() == line.low.tolist() == line.high.tolist() == [3, 4]
