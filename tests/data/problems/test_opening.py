"""Tasks open by name or from a file, and a mistake ends in one line that says what would be right."""

import random
import re

import pytest

from longshort.data import DataError
from longshort.data.problems import Chains, Frontiers, open_task

OWN = '''
import random
from dataclasses import dataclass
from longshort.data.problems import Problem, ProblemTask

@dataclass(frozen=True, kw_only=True)
class Echo(ProblemTask):
    """Say the number once more."""
    numbers: int = 5
    vocab_size = 12
    end_of_thinking = 10
    stop = 11
    max_prompt = 1
    max_new_tokens = 3

    def problem(self, rng):
        number = int(rng.random() * self.numbers)
        return Problem([number], [10, number, 11], number)

    def reward(self, problem, tokens):
        return float(tokens == [10, problem.answer, 11])
'''


NAMED = "task must be one of frontiers, chains or path/to/file.py:ClassName"


def opened(tmp_path, text=OWN, name="Echo", options=None):
    path = tmp_path / "own.py"
    path.write_text(text)
    return open_task(f"{path}:{name}", options)


def test_tasks_open_by_name_with_their_options():
    assert open_task("frontiers", {"depth": 4, "n_nodes": 30}) == Frontiers(depth=4, n_nodes=30)
    assert open_task("chains") == Chains()


def test_a_task_of_ones_own_opens_from_its_file(tmp_path):
    task = opened(tmp_path, options={"numbers": 3})
    assert task.numbers == 3 and task.reward(task.problem(random.Random(0)), []) == 0.0
    assert task.text([1, 10]) == "1 10"


@pytest.mark.parametrize(
    "name, options, message",
    [
        (
            "frontier",
            {},
            f"{NAMED}, got 'frontier'; did you mean frontiers?",
        ),
        ("own.py", {}, f"{NAMED}, got 'own.py'"),
        (None, {}, f"{NAMED}, got None"),
        ("no/such.py:Task", {}, "no/such.py: no such file; a task is given as path/to/file.py:ClassName"),
        ("chains", {"operation": 3}, "the task chains has no option 'operation'; did you mean operations?"),
        ("chains", {"x": 3}, "the task chains has no option 'x'; it has modulus, operations, constants"),
        ("chains", {"modulus": "7"}, "the task chains: modulus must be an integer from 2 to 100000, got '7'"),
    ],
)
def test_a_task_that_cannot_be_opened_is_refused_in_one_line(name, options, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        open_task(name, options)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("class Echo", "class Ecco", "Echo must be a class in it that inherits from longshort.rl.ProblemTask"),
        ("(ProblemTask)", "", "Echo must be a class in it that inherits from longshort.rl.ProblemTask"),
        ("    stop = 11\n", "", "Echo must define stop"),
        ("import random", "import", "cannot be imported, SyntaxError: invalid syntax"),
        ("import random", "1 / 0", "cannot be imported, ZeroDivisionError: division by zero"),
        ("stop = 11", "stop = 12", "stop must be an integer from 0 to 11, got 12"),
        ("max_prompt = 1", "max_prompt = None", "max_prompt must be an integer from 1 to 2147483647, got None"),
        ("return Problem([number],", "return Problem([number] * 2,", "a prompt must have from 1 to 1 tokens, got 2"),
        ("[10, number, 11], number)", "[10, number, 12], number)", "tokens must be from 0 to 11, got 12 in a solution"),
        ("[10, number, 11], number)", "[10, number], number)", "a solution must end with stop=11, got"),
        ("return Problem(", "return (", "problem must return a Problem, got tuple"),
        ("number = ", "number = {}[1]  # ", "problem raised KeyError: 1 (own.py, line "),
        ("return Problem([number],", "return Problem(None,", "a prompt must be a list of tokens, got None"),
        ("    stop = 11\n", "    stop = 11\n    text = lambda self, tokens: 1 / 0\n", "text raised ZeroDivisionError"),
        (
            "    stop = 11\n",
            "    stop = 11\n    text = lambda self, tokens: None\n",
            "text must return a text, got NoneType",
        ),
        ("    stop = 11\n", "    stop = property(lambda self: {}[0])\n", "stop raised KeyError: 0 (own.py, line "),
        (
            "    stop = 11\n",
            "    stop = 11\n    __post_init__ = lambda self: {}[0]\n",
            "cannot be made, KeyError: 0 (own.py",
        ),
        ("numbers: int = 5", "numbers: int", "missing 1 required keyword-only argument: 'numbers'"),
    ],
)
def test_a_task_of_ones_own_that_is_wrong_is_refused_in_one_line(tmp_path, old, new, message):
    assert old in OWN
    with pytest.raises(DataError, match=re.escape(message)) as error:
        opened(tmp_path, OWN.replace(old, new, 1))
    assert "\n" not in str(error.value)
