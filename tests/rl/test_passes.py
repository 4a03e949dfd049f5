"""Pass@k against counting, and evaluation: each sample is judged, with its own problem, as it was drawn."""

from itertools import combinations
from types import SimpleNamespace

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
    "right, k, message",
    [
        ([0], 5, "k must be from 1 to the 4"),
        ([5], 1, "got 5"),
        ([-1], 1, "-1"),
        ([1.5], 1, "got 1.5"),
        ([1], 1.5, "got 1.5"),
    ],
)
def test_counts_that_cannot_be_are_refused(right, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(right, 4, k)


def small():
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=TASK.vocab_size, context=16, n_layers=1, width=16, n_heads=2))


class Scripted:
    """A sampler whose i-th sequence solves its problem if i is a multiple of three, and has no end if not."""

    drawn = 0

    def __init__(self, model, thinking, *, batch_size, **options):
        self.batch_size = batch_size

    def draw(self, prompts, *, seed):
        assert len(prompts) == self.batch_size
        rows = []
        for prompt in prompts:
            solution = next(problem for problem in PROBLEMS if problem.prompt == prompt).solution
            rows.append([*solution, -1] if Scripted.drawn % 3 == 0 else [*solution[:-1], 0, 0])
            Scripted.drawn += 1
        return SimpleNamespace(tokens=torch.tensor(rows))


def test_each_sample_is_judged_with_its_own_problem_across_batches(monkeypatch):
    monkeypatch.setattr("longshort.rl.passes.Sampler", Scripted)
    assert evaluate_problems(None, TASK, None, PROBLEMS, 4, batch=7) == [2, 1, 1, 2, 1]
    assert Scripted.drawn == 21


def test_a_sample_whose_verifier_raises_is_not_right():
    class Broken(type(TASK)):
        def reward(self, problem, tokens):
            raise RuntimeError("no verdict")

    task = Broken(modulus=7, operations=2, constants=2)
    assert evaluate_problems(small(), task, None, PROBLEMS, 2) == [0] * 5


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problems": []}, "problems must be at least one, got none"),
        ({"samples": 0}, "samples must be an integer from 1 to 2.31 - 1, got 0"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"batch": -1}, "batch must be an integer from 1 to 2.31 - 1, got -1"),
    ],
)
def test_what_cannot_be_evaluated_is_named(change, message):
    given = {"thinking": None, "problems": PROBLEMS, "samples": 1} | change
    with pytest.raises(ValueError, match=message):
        evaluate_problems(small(), TASK, **given)
