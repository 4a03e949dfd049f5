"""Pass@k against counting, and evaluation: each sample is judged, with its own problem, as it was drawn."""

from itertools import combinations

import pytest
import torch

from longshort import GPT, GPTConfig
from longshort.generation import SoftThinking
from longshort.rl import drawn, evaluate_problems, open_task, pass_at_k

TASK = open_task("chains", {"modulus": 7, "operations": 2, "constants": 2})
PROBLEMS = [drawn(TASK, "test", 0, index) for index in range(5)]


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_pass_at_k_is_the_share_of_choices_of_k_samples_that_hold_a_right_one(k):
    for right in range(7):
        samples = [True] * right + [False] * (6 - right)
        choices = list(combinations(samples, k))
        assert pass_at_k([right], 6, k)[0] == pytest.approx(sum(map(any, choices)) / len(choices))


def test_many_samples_do_not_overflow():
    assert pass_at_k([1], 2_000, 1)[0] == pytest.approx(1 / 2_000)
    assert pass_at_k([1_000], 2_000, 1_500) == [1.0]


@pytest.mark.parametrize(
    "right, k, message", [([0], 5, "k must be from 1 to the 4"), ([5], 1, "got 5"), ([-1], 1, "-1")]
)
def test_counts_that_cannot_be_are_refused(right, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(right, 4, k)


def small():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=TASK.vocab_size, context=16, n_layers=1, width=16, n_heads=2))


def test_each_sample_is_judged_with_its_own_problem_across_batches():
    """The i-th sequence to be drawn solves its problem if i is a multiple of three."""
    calls = []

    def draw(prompts, seed):
        rows = []
        for prompt in prompts:
            problem = next(problem for problem in PROBLEMS if problem.prompt == prompt)
            number = sum(map(len, calls)) + len(rows)
            rows.append(problem.solution if number % 3 == 0 else [*problem.solution[:-1], -1])
        calls.append(rows)
        return torch.tensor(rows)

    assert evaluate_problems(small(), TASK, None, PROBLEMS, 4, batch=7, draw=draw) == [2, 1, 1, 2, 1]
    assert [len(rows) for rows in calls] == [7, 7, 6]


def test_what_follows_the_stop_token_is_not_judged():
    rows = [[*PROBLEMS[0].solution, -1, -1]]
    assert evaluate_problems(small(), TASK, None, PROBLEMS[:1], 1, draw=lambda prompts, seed: torch.tensor(rows)) == [1]


@pytest.mark.parametrize("thinking", [None, SoftThinking(end=TASK.end_of_thinking, top_k=2)])
def test_a_model_is_read_soft_and_hard(thinking):
    """One that knows the answers by heart gives them in either reading, and a new one does not."""
    model = small().train()
    solved = _taught(model)
    right = evaluate_problems(model, TASK, thinking, PROBLEMS, 8, seed=1, temperature=0.1)
    assert model.training and solved and sum(right) >= 36
    assert right == evaluate_problems(model, TASK, thinking, PROBLEMS, 8, seed=1, temperature=0.1)
    assert sum(evaluate_problems(small(), TASK, thinking, PROBLEMS, 8)) < 8


def _taught(model):
    whole = torch.tensor([problem.prompt + problem.solution for problem in PROBLEMS])
    targets = whole[:, 1:].clone()
    targets[:, : TASK.max_prompt - 1] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(150):
        loss = model(whole[:, :-1], targets).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss < 0.05


class EvenFirst(type(TASK)):
    """Right is what begins with an even token, which a model that has learned nothing does now and then."""

    def reward(self, problem, tokens):
        return float(tokens[0] % 2 == 0)


def test_the_seed_decides_the_samples():
    model, task = small(), EvenFirst(modulus=7, operations=2, constants=2)
    first, again, other = (evaluate_problems(model, task, None, PROBLEMS, 16, seed=seed) for seed in (0, 0, 1))
    assert first == again != other
