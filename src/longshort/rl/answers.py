"""Answers to problems: the one place where reinforcement learning draws, as its configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.data.problems import Problem, ProblemTask
from longshort.generation import SoftThinking, gaussian_sigma
from longshort.model import GPT
from longshort.rl.log_probs import Form
from longshort.rl.rollout import Rollout
from longshort.rl.sampler import Sampler
from longshort.train.evaluation.held_out import eagerly
from longshort.train.settings.config import TrainConfig
from longshort.train.settings.rl import RLConfig

_NEXT_TO_0 = 1e-6
"""The tau at which a mixture is one token, drawn from the truncated distribution."""


def thinking_of(rl: RLConfig, task: ProblemTask, sigma: float | None = None) -> SoftThinking | None:
    """The mixtures of an algorithm; None for discrete tokens of the whole vocabulary.

    `sigma` is that of Gaussian noise, for which `rl.sigma` is only relative.
    """
    shared: dict[str, Any] = {"top_k": rl.top_k, "top_p": rl.top_p, "temperature": rl.temperature}
    if rl.algorithm in ("grpo", "dr-grpo"):
        # Every token is drawn as a mixture of one, the stop token included, so that each has its truncated score.
        return SoftThinking(end=task.stop, tau=_NEXT_TO_0, **shared) if rl.truncate else None
    shared |= {"end": task.end_of_thinking, "tau": rl.tau}
    if rl.algorithm == "gaussian-soft":
        return SoftThinking(noise="gaussian", sigma=sigma, **shared)
    return SoftThinking(clamp=rl.noise_clamp, **shared)


def form_of(rl: RLConfig) -> Form:
    """How an algorithm scores its mixtures."""
    return "categorical" if rl.truncate else cast(Form, rl.form)


class Answerer:
    """Draws answers to problems with a model as it is at the time."""

    def __init__(self, model: GPT, task: ProblemTask, config: TrainConfig, sigma: float | None = None) -> None:
        """`sigma` is that of Gaussian noise; from the model's present embeddings if None."""
        rl = config.rl
        self.model, self.task, self.at_once = model, task, rl.prompts * rl.group
        if rl.algorithm == "gaussian-soft" and sigma is None:
            sigma = gaussian_sigma(model.embedding.weight, rl.sigma)
        self.sigma, self.thinking = sigma, thinking_of(rl, task, sigma)
        on_gpu, precision = model.embedding.weight.is_cuda, config.run.precision
        self._shape = (task.max_prompt, rl.max_new_tokens or task.max_new_tokens) if on_gpu else None
        self._options: dict[str, Any] = {
            "max_prompt": task.max_prompt,
            "max_new_tokens": rl.max_new_tokens or task.max_new_tokens,
            "temperature": rl.temperature,
            "stop": task.stop,
            "log_probs": True,
            "dtype": torch.bfloat16 if on_gpu and precision != "fp32" else None,
        }
        if rl.algorithm in ("soft-grpo", "gaussian-soft"):
            # As in the code of arXiv 2511.06411: truncated too, though scored on the whole vocabulary.
            self._options |= {"top_k": rl.top_k, "top_p": rl.top_p}
        self._samplers: dict[int, Sampler] = {}

    def draw(self, problems: Sequence[Problem], group: int, seed: int) -> Rollout:
        """A rollout of `group` consecutive sequences for each problem, which depends on the weights and the seed.

        On a GPU all rollouts have the shape of the longest possible one.
        """
        prompts = [problem.prompt for problem in problems for _ in range(group)]
        if len(prompts) not in self._samplers:
            sampler = Sampler(self.model, self.thinking, batch_size=len(prompts), **self._options)
            self._samplers[len(prompts)] = sampler
        with eagerly():
            drawn = self._samplers[len(prompts)].draw(prompts, seed=seed)
        return drawn if self._shape is None else widened(drawn, *self._shape)


def widened(drawn: Rollout, prompt: int, count: int) -> Rollout:
    """The rollout with prompts of `prompt` columns and `count` new ones, so that all rollouts have one shape."""
    left, right = prompt - drawn.prompts.shape[1], count - drawn.tokens.shape[1]
    if not left and not right:
        return drawn
    changed: dict[str, Any] = {"prompts": F.pad(drawn.prompts, (left, 0)), "padding": drawn.padding + left}
    for field in fields(drawn):
        held = getattr(drawn, field.name)
        if field.name not in changed and isinstance(held, Tensor):  # (B, T) or (B, T, ...)
            after = (0, 0) * (held.ndim - 2) + (0, right)
            changed[field.name] = F.pad(held, after, value=-1 if field.name == "tokens" else 0)
    return replace(drawn, **changed)


def sequences(drawn: Rollout) -> list[list[int]]:
    """The tokens of each sequence, up to and including its stop token."""
    return [[token for token in row if token >= 0] for row in drawn.tokens.tolist()]


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
