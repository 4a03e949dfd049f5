"""How a run draws: the one place where reinforcement learning calls the engine, and what it makes of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.nn import functional as F

from longshort.data.problems import Problem, ProblemTask
from longshort.generation import SoftThinking
from longshort.model import GPT
from longshort.rl.log_probs import Form
from longshort.rl.rollout import Rollout, rollout
from longshort.train.held_out import eagerly
from longshort.train.rl_config import RLConfig

_NEXT_TO_0 = 1e-6
"""The tau at which a mixture is one token, drawn from the truncated distribution."""


def thinking_of(rl: RLConfig, task: ProblemTask) -> SoftThinking | None:
    """The mixtures of an algorithm; None for discrete tokens of the whole vocabulary."""
    shared: dict[str, Any] = {"top_k": rl.top_k, "top_p": rl.top_p, "temperature": rl.temperature}
    if rl.algorithm in ("grpo", "dr-grpo"):
        # Every token is drawn as a mixture of one, the stop token included, so that each has its truncated score.
        return SoftThinking(end=task.stop, tau=_NEXT_TO_0, **shared) if rl.truncate else None
    if rl.algorithm == "gaussian-soft":
        shared |= {"noise": "gaussian", "sigma": rl.sigma}
        return SoftThinking(end=task.end_of_thinking, tau=rl.tau, **shared)
    return SoftThinking(end=task.end_of_thinking, tau=rl.tau, clamp=rl.noise_clamp, **shared)


def form_of(rl: RLConfig) -> Form:
    """How an algorithm scores its mixtures."""
    forms: dict[str, Form] = {"paper": "paper", "code": "code", "categorical": "categorical"}
    return "categorical" if rl.truncate else forms[rl.form]


@dataclass(frozen=True)
class Sampler:
    """Draws answers to problems with a model as it is at the time."""

    model: GPT
    task: ProblemTask
    thinking: SoftThinking | None
    max_new_tokens: int
    temperature: float

    @classmethod
    def of(cls, model: GPT, task: ProblemTask, rl: RLConfig) -> Sampler:
        """The sampler that a configuration asks for."""
        return cls(model, task, thinking_of(rl, task), rl.max_new_tokens or task.max_new_tokens, rl.temperature)

    def draw(self, problems: Sequence[Problem], group: int, seed: int) -> Rollout:
        """A rollout of `group` consecutive sequences for each problem, which depends on the weights and the seed."""
        prompts = [problem.prompt for problem in problems for _ in range(group)]
        was_training = self.model.training
        self.model.eval()
        with eagerly():
            drawn = rollout(
                self.model,
                prompts,
                self.thinking,
                max_new_tokens=self.max_new_tokens,
                temperature=self.temperature,
                stop=self.task.stop,
                seed=seed,
            )
        self.model.train(was_training)
        return widened(drawn, self.task.max_prompt, self.max_new_tokens) if drawn.tokens.is_cuda else drawn


def widened(drawn: Rollout, prompt: int, count: int) -> Rollout:
    """The rollout with prompts of `prompt` columns and `count` new ones, so that all rollouts have one shape."""
    left, right = prompt - drawn.prompts.shape[1], count - drawn.tokens.shape[1]
    if not left and not right:
        return drawn
    after, kept = (0, right), drawn.drawn_log_probs
    return replace(
        drawn,
        prompts=F.pad(drawn.prompts, (left, 0)),
        padding=drawn.padding + left,
        tokens=F.pad(drawn.tokens, after, value=-1),
        soft=F.pad(drawn.soft, after),
        ids=F.pad(drawn.ids, (0, 0, *after)),
        values=F.pad(drawn.values, (0, 0, *after)),
        drawn_log_probs=None if kept is None else F.pad(kept, after),
    )


def sequences(drawn: Rollout) -> list[list[int]]:
    """The tokens of each sequence, up to and including its stop token."""
    lengths = drawn.mask.sum(1).tolist()
    return [row[:length] for row, length in zip(drawn.tokens.tolist(), lengths, strict=True)]


def lengths(samples: Sequence[list[int]], end: int) -> tuple[float, float]:
    """Mean number of thinking tokens, before the end mark, and of answer tokens, after it.

    >>> lengths([[5, 5, 9, 1, 2], [5]], end=9)
    (1.5, 1.0)
    """
    thought = [sample.index(end) if end in sample else len(sample) for sample in samples]
    answers = [max(0, len(sample) - before - 1) for sample, before in zip(samples, thought, strict=True)]
    return sum(thought) / len(samples), sum(answers) / len(samples)


def rollout_seed(seed: int, batch: int) -> int:
    """The seed of a step's rollout, a function of the run's seed and of the number of the batch."""
    return int((seed * 0x9E3779B97F4A7C15 + batch) % 2**63)
