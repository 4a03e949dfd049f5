"""The problems of a run: each is checked as it is drawn, since a task of one's own may be wrong in a few of them."""

from dataclasses import replace

import pytest

from longshort.data.errors import DataError
from longshort.data.problems import Chains, Problem
from longshort.rl.problem_data import ProblemData


class Sometimes(Chains):
    """Wrong in a quarter of the problems."""

    wrong = None

    def problem(self, rng):
        right = super().problem(rng)
        return right if rng.random() < 0.75 else self.wrong(right)


def raising(problem):
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (raising, r"the task mine.py:Mine: problem raised KeyError: 'lost' \(test_problem_data.py, line \d+\)"),
        (lambda problem: None, "problem must return a Problem, got NoneType"),
        (lambda problem: replace(problem, prompt=[]), "a prompt must have from 1 to 4 tokens, got 0"),
        (lambda problem: replace(problem, prompt=problem.prompt * 2), "a prompt must have from 1 to 4 tokens, got 8"),
        (lambda problem: replace(problem, solution=problem.solution * 2), "a solution must have from 1 to 4 tokens"),
        (lambda problem: replace(problem, prompt=[13]), "tokens must be from 0 to 12, got 13 in a prompt"),
        (lambda problem: Problem([1], [2], None), "a solution must end with stop=11, got 2"),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_later_problem_that_contradicts_its_task_is_named(split, wrong, message):
    task = Sometimes(modulus=7, operations=1, constants=2)
    data = ProblemData(task, "mine.py:Mine", "{}", 0, 0, task.max_new_tokens)
    object.__setattr__(task, "wrong", wrong)
    with pytest.raises(DataError, match=message):
        data.training(0, 40) if split == "train" else data.held_out(40)
