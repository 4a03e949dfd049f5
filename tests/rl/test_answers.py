"""How answers are drawn: what each algorithm asks of the engine, and the shapes of rollouts."""

import random

import pytest
import torch

from longshort import GPT
from longshort.data.problems import open_task
from longshort.rl.answers import Answerer, form_of, rollout_seed, sequences, thinking_of, widened
from longshort.train.settings.rl import RLConfig

from .tiny import tiny_rl

TASK = open_task("chains", {"modulus": 5, "operations": 2, "constants": 2})


def answerer(tmp_path, *changes):
    config = tiny_rl(tmp_path, *changes)
    return Answerer(GPT(config.model), TASK, config)


@pytest.mark.parametrize(
    ("settings", "end", "form"),
    [
        ({"algorithm": "grpo"}, None, "paper"),
        ({"algorithm": "dr-grpo", "truncate": True}, TASK.stop, "categorical"),
        ({"form": "code", "noise_clamp": (-1.5, 3.0)}, TASK.end_of_thinking, "code"),
    ],
)
def test_an_algorithm_has_its_mixtures_and_its_score(settings, end, form):
    rl = RLConfig(**settings)
    thinking = thinking_of(rl, TASK)
    assert (None if thinking is None else thinking.end) == end and form_of(rl) == form
    if thinking is not None:
        assert thinking.clamp == rl.noise_clamp and thinking.tau == (1e-6 if rl.truncate else 0.1)


def test_the_seed_decides_the_answers(tmp_path):
    drawer, problem = answerer(tmp_path), TASK.problem(random.Random(0))
    one, same, other = (drawer.draw([problem] * 4, 4, seed).tokens for seed in (1, 1, 2))
    assert torch.equal(one, same) and (one.shape != other.shape or not torch.equal(one, other))
    assert len({rollout_seed(seed, batch) for seed in (-3, 0, 7) for batch in range(5)}) == 15


@pytest.mark.parametrize("changes", [["rl.algorithm=grpo"], [], ["rl.algorithm=gaussian-soft"]], ids=str)
def test_a_wider_rollout_has_the_same_log_probabilities(changes, tmp_path):
    drawer, problem = answerer(tmp_path, *changes), TASK.problem(random.Random(0))
    drawn = drawer.draw([problem] * 2, 2, 0)
    wide = widened(drawn, drawn.prompts.shape[1] + 2, drawn.tokens.shape[1] + 1)
    assert wide.prompts.shape[1] == drawn.prompts.shape[1] + 2 and sequences(wide) == sequences(drawn)
    narrow = drawn.log_probs(drawer.model)
    torch.testing.assert_close(wide.log_probs(drawer.model)[:, : narrow.shape[1]], narrow)
    assert (wide.log_probs(drawer.model)[:, narrow.shape[1] :] == 0).all()
