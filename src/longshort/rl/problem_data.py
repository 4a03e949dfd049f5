"""The problems of a run: which ones a step takes, and their solutions as batches for supervised training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from longshort.data.problems import Problem, ProblemTask, checked_problem, drawn, file_of
from longshort.model.inputs import IGNORED_TARGET
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.settings.vocabulary import open_problems


@dataclass(frozen=True)
class ProblemData:
    """A task and how a run draws its problems; the counterpart of `TextData`."""

    task: ProblemTask
    name: str
    options: str
    task_seed: int
    run_seed: int
    max_new_tokens: int
    code: bytes = b""
    """What the task's file says, if it is a user's own."""

    @classmethod
    def open(cls, config: TrainConfig) -> ProblemData:
        """The task that the configuration names, checked against the model."""
        rl, model = config.rl, config.model
        if rl.task is None:
            raise ConfigError("rl.task must be set for reinforcement learning, got null; run longshort train otherwise")
        task = open_problems(rl.task, rl.task_options)
        for mark in ("end_of_thinking", "stop"):
            if getattr(task, mark) >= model.vocab_size:
                raise ConfigError(
                    f"model.vocab_size must be above {mark}={getattr(task, mark)}, a token of the task {rl.task}, "
                    f"got {model.vocab_size}"
                )
        if task.vocab_size > model.vocab_size:
            raise ConfigError(
                f"model.vocab_size must be at least {task.vocab_size}, the vocabulary of the task {rl.task}, "
                f"got {model.vocab_size}"
            )
        count = rl.max_new_tokens or task.max_new_tokens
        longest = task.max_prompt + max(count, task.max_new_tokens) - 1
        if longest > model.context:
            raise ConfigError(
                f"model.context must be at least {longest}, for prompts of {task.max_prompt} tokens and answers of "
                f"{max(count, task.max_new_tokens)}, got {model.context}"
            )
        options = json.dumps(rl.task_options, sort_keys=True, default=str)
        file = file_of(rl.task)
        code = b"" if file is None else file.read_bytes()
        return cls(task, rl.task, options, rl.task_seed, config.run.seed, count, code)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.name} {self.options}".encode() + self.code).hexdigest()

    @property
    def tokenizer_checksum(self) -> str | None:
        """None, since a task's tokens are not text."""
        return None

    @property
    def texts(self) -> dict[str, str]:
        """None, since problems are drawn."""
        return {}

    def keep_tokenizer(self, out: Path) -> None:
        """Do nothing: a task's tokens are not text, so it has no tokenizer."""

    def training(self, first: int, count: int) -> list[Problem]:
        """Training problems `first` to `first + count` of this run; runs of other seeds have others."""
        seed = self.task_seed + self.run_seed
        return [self._problem("train", seed, first + i) for i in range(count)]

    def held_out(self, count: int, split: str = "validation", first: int = 0) -> list[Problem]:
        """The first problems of a split, the same for all runs of a task."""
        return [self._problem(split, self.task_seed, first + i) for i in range(count)]

    def _problem(self, split: str, seed: int, index: int) -> Problem:
        return checked_problem(self.name, self.task, lambda: drawn(self.task, split, seed, index))

    def solutions(self, problems: list[Problem], device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens and targets (B, L) of prompts with their solutions, padded on the right to the longest possible.

        Only the solution is to be predicted.
        """
        width = self.task.max_prompt + self.task.max_new_tokens - 1
        tokens, targets = [], []
        for problem in problems:
            asked, told = problem.prompt, problem.solution
            after = width + 1 - len(asked) - len(told)
            tokens.append([*asked, *told[:-1], *[0] * after])
            targets.append([IGNORED_TARGET] * (len(asked) - 1) + told + [IGNORED_TARGET] * after)
        return torch.tensor(tokens, device=device), torch.tensor(targets, device=device)
