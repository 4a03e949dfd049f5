"""Rewards of what was drawn. A verifier is a user's code, and may raise on what no solution looks like."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longshort.data.problems import Problem, ProblemTask


class VerifierError(ValueError):
    """The verifier raised for too many samples."""


@dataclass(frozen=True)
class Rewards:
    """The rewards of some samples, and how many of these could not be verified."""

    values: Tensor
    """(B,) fp32; 0 where the verifier raised."""
    failed: int
    """Number of samples for which it did."""
    error: str = ""
    """The first of these errors: what it was, and where."""
    sample: int | None = None
    """The sample that raised it."""


def verified(task: ProblemTask, problems: Sequence[Problem], samples: Sequence[list[int]]) -> Rewards:
    """Ask the task what each sample is worth as an answer to its problem.

    >>> from longshort.data.problems import Chains, drawn
    >>> task = Chains(operations=2)
    >>> problem = drawn(task, "train", 0, 0)
    >>> verified(task, [problem, problem], [problem.solution, []]).values
    tensor([1., 0.])
    """
    values, failed, first, where = [], 0, "", None
    for number, (problem, tokens) in enumerate(zip(problems, samples, strict=True)):
        value = 0.0
        try:
            value = _number(task.reward(problem, list(tokens)))
        except (Exception, SystemExit) as error:  # exit() in a verifier must not end a run as if it were finished
            value, failed = 0.0, failed + 1
            if where is None:
                first, where = _told(error), number
        values.append(value)
    return Rewards(torch.tensor(values), failed, first, where)


def check_failures(rewards: Rewards, share: float) -> None:
    """Raise if the verifier raised for more than this share of the samples."""
    count = len(rewards.values)
    if rewards.failed > share * count:
        raise VerifierError(
            f"rl.task: the verifier raised for {rewards.failed} of {count} samples, more than "
            f"rl.failed_share={share:g} allows; the first time: {rewards.error}"
        )


def _number(value: Any) -> float:
    """The reward, if it is a number that fp32 can hold; texts are none, even those that `float` reads."""
    try:
        if isinstance(value, str | bytes):
            raise ValueError
        if abs(number := float(value)) <= torch.finfo(torch.float32).max:
            return number
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch's, for tensors of several numbers, among them
        pass
    raise ValueError(f"a reward must be a number that is finite in fp32, got {value!r:.100}")


def _told(error: BaseException) -> str:
    """One line: the error, and the last line of the verifier in which it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).splitlines()
    message = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return message if last.filename == __file__ else f"{message} ({Path(last.filename).name}, line {last.lineno})"
