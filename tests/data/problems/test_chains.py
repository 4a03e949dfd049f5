"""Chains: results are those of the arithmetic, and the verifier reads one number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.data.problems import Chains, drawn

TASK = Chains(modulus=31, operations=4, constants=5)


def test_each_thought_is_the_value_after_one_more_operation():
    for index in range(100):
        problem = drawn(TASK, "train", 0, index)
        words = TASK.text(problem.prompt).split()
        assert words.pop() == "=" and len(words) == 1 + 2 * TASK.operations
        value, values = int(words[0]), []
        for sign, constant in zip(words[1::2], map(int, words[2::2]), strict=True):
            assert 1 <= constant <= TASK.constants
            value = {"+": value + constant, "-": value - constant, "*": value * constant}[sign] % TASK.modulus
            values.append(value)
        assert problem.solution == [*values, TASK.end_of_thinking, value, TASK.stop] and problem.answer == value
        assert len(problem.prompt) == TASK.max_prompt and len(problem.solution) == TASK.max_new_tokens


def test_all_signs_and_constants_and_numbers_occur():
    seen = {token for index in range(500) for token in drawn(TASK, "train", 0, index).prompt}
    assert seen == {*range(TASK.modulus), *range(TASK.modulus, TASK.modulus + 3), TASK.equals}


def test_the_answer_is_one_right_number_between_the_marks():
    problem = drawn(TASK, "train", 0, 0)
    end, stop, right = TASK.end_of_thinking, TASK.stop, problem.answer
    assert TASK.reward(problem, problem.solution) == TASK.reward(problem, [end, right, stop]) == 1.0
    wrong = [[], [right], [right, stop], [end, right], [end, stop], [end, right, right, stop], [end, right + 1, stop]]
    assert [TASK.reward(problem, tokens) for tokens in wrong] == [0.0] * len(wrong)


@given(st.lists(st.integers(-1, 60), max_size=12))
def test_any_tokens_can_be_judged(tokens):
    problem = drawn(TASK, "train", 0, 0)
    assert TASK.reward(problem, tokens) in (0.0, 1.0) and isinstance(TASK.text(tokens), str)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"modulus": 1}, "modulus must be an integer from 2 to 100000, got 1"),
        ({"operations": 0}, "operations must be an integer from 1 to 1000, got 0"),
        ({"modulus": 7, "constants": 7}, "constants must be an integer from 1 to 6, got 7"),
    ],
)
def test_options_that_make_no_chain_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Chains(**options)
