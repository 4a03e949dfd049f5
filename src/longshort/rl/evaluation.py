"""What a model's answers are worth: rewards on held-out problems, an answer as text, and the loss of solutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longshort.data.problems import SPLITS, Problem, ProblemTask
from longshort.model import GPT
from longshort.nn.modes import evaluating
from longshort.numeric import check_count
from longshort.rl.answers import Answerer, sequences
from longshort.rl.passes import pass_at_k
from longshort.rl.problem_data import ProblemData
from longshort.rl.rewards import Rewards, verified
from longshort.train import ConfigError, TrainConfig, load_model
from longshort.train.checkpoints.checkpoint import Checkpoint
from longshort.train.machine.distributed import choose_device
from longshort.train.machine.precision import autocast

_SEED = 0x5EED
"""Evaluations draw with seeds of their own, the same for all runs."""


@dataclass(frozen=True)
class Answered:
    """Answers to some problems, `samples` for each."""

    rewards: Rewards
    samples: int
    text: str
    """The first problem and the first answer to it."""

    @property
    def reward(self) -> float:
        """The mean reward."""
        return float(self.rewards.values.mean())

    @property
    def best_reward(self) -> float:
        """The mean over problems of the best of their samples."""
        return float(self.rewards.values.view(-1, self.samples).amax(1).mean())


@torch.no_grad()
def answered(
    answerer: Answerer,
    problems: list[Problem],
    samples: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Answered:
    """Draw answers to the problems and verify them."""
    task, tokens = answerer.task, []
    step = max(1, answerer.at_once // samples)
    for first in range(0, len(problems), step):
        tokens += sequences(answerer.draw(problems[first : first + step], samples, _SEED + first))
        progress(first)
    rewards = verified(task, [problem for problem in problems for _ in range(samples)], tokens)
    worth = f"reward {rewards.values[0].item():g}"
    return Answered(rewards, samples, f"{_text(task, problems[0].prompt)}\n{_text(task, tokens[0])}\n{worth}")


def _text(task: ProblemTask, tokens: list[int]) -> str:
    """The task's text of tokens, which may be anything; their numbers where it raises."""
    try:
        return task.text(tokens)
    except Exception:
        return " ".join(map(str, tokens))


@torch.no_grad()
def solution_loss(model: GPT, data: ProblemData, problems: list[Problem], precision: str, step: int = 64) -> float:
    """Mean cross-entropy of the solutions' tokens."""
    device = model.embedding.weight.device
    total, counted = torch.zeros((), device=device), torch.zeros((), device=device)
    with evaluating(model):
        for first in range(0, len(problems), step):
            tokens, targets = data.solutions(problems[first : first + step], device)
            count = (targets >= 0).sum()
            with autocast(precision, device):
                loss = model(tokens, targets).loss
            assert loss is not None
            total, counted = total + loss * count, counted + count
    return float(total / counted)


def is_of_rl(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is of reinforcement learning."""
    return checkpoint.state.get("config", {}).get("rl", {}).get("task") is not None


def evaluate_rewards(
    checkpoint: Path | Checkpoint,
    *,
    split: str = "validation",
    problems: int | None = None,
    samples: int | None = None,
    device: str = "auto",
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """The rewards of a checkpoint of reinforcement learning on problems of a split, drawn as in its run.

    `pass` holds Pass@k for k = 1, 2, 4, ..., a reward of 1 or more being right; `text` is the first answer.
    """
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    for name, count in (("problems", problems), ("samples", samples)):
        if count is not None:
            check_count(name, count)
    model, loaded = load_model(checkpoint, choose_device(device))
    config = TrainConfig.from_dict(loaded.state["config"])
    data, rl = ProblemData.open(config), config.rl
    chosen = data.held_out(problems or rl.eval_problems, split)
    answerer = Answerer(model, data.task, config, loaded.state.get("sigma"))
    found = answered(answerer, chosen, samples or rl.eval_samples, progress)
    where = {"checkpoint": str(loaded.path), "step": loaded.step, "task": rl.task, "split": split}
    scores: dict[str, Any] = {"loss": solution_loss(model, data, chosen, config.run.precision), "reward": found.reward}
    right = (found.rewards.values.view(-1, found.samples) >= 1).sum(1).tolist()
    tries = [2**i for i in range(found.samples.bit_length()) if 2**i <= found.samples]
    scores["pass"] = {k: sum(pass_at_k(right, found.samples, k)) / len(right) for k in tries}
    numbers = {"examples": len(chosen), "samples": found.samples, "failed": found.rewards.failed}
    return {**where, **numbers, **scores, "text": found.text}
