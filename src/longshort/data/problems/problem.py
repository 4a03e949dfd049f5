"""What a task with a verifier is: it draws problems, and says what a model's tokens are worth. No model is needed here.

Problems are drawn with `random.Random.random` alone in the tasks of this package: of Python's generator it is the one
method whose numbers are promised to stay the same in later versions.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from longshort.data.corpus import SPLITS

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """One question to a model."""

    prompt: list[int]
    """What the model is given."""
    solution: list[int]
    """A right continuation: thinking tokens, the end mark, the answer, the stop token. For supervised training."""
    answer: Any
    """What the verifier compares with; the model never sees it."""


class ProblemTask(ABC):
    """A generator of problems, and the verifier of what was drawn after them.

    A task is a frozen dataclass by habit, and its fields are the task's options. The five numbers may be fields, plain
    class attributes or properties.
    """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    @abstractmethod
    def end_of_thinking(self) -> int:
        """The token after which a model no longer thinks but answers."""

    @property
    @abstractmethod
    def stop(self) -> int:
        """The token that ends an answer."""

    @property
    @abstractmethod
    def max_prompt(self) -> int:
        """Tokens of the longest prompt."""

    @property
    @abstractmethod
    def max_new_tokens(self) -> int:
        """Tokens of the longest solution, the stop token included."""

    @abstractmethod
    def problem(self, rng: random.Random) -> Problem:
        """Draw a problem. All chance must come from `rng`, so that a problem can be drawn again."""

    @abstractmethod
    def reward(self, problem: Problem, tokens: list[int]) -> float:
        """What the tokens are worth that a model drew after the prompt, up to and including the stop token.

        They may be anything: empty, too long, without a mark. Never execute them as code.
        """

    def text(self, tokens: Iterable[int]) -> str:
        """Write the tokens for people."""
        return " ".join(map(str, tokens))


def drawn(task: ProblemTask, split: str, seed: int, index: int) -> Problem:
    """Problem number `index` of a split, which depends on the arguments alone.

    Splits share no random numbers. A task with few possible problems repeats them, within a split and across splits.

    >>> from longshort.data.problems import Chains
    >>> drawn(Chains(), "test", 0, 7) == drawn(Chains(), "test", 0, 7)
    True
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return task.problem(random.Random(f"{split}/{seed}/{index}"))


def below(rng: random.Random, count: int) -> int:
    """Draw an integer from 0 to count - 1."""
    return int(rng.random() * count)


def shuffled(items: Iterable[T], rng: random.Random) -> list[T]:
    """The items in a random order."""
    items, draw = list(items), rng.random
    for last in range(len(items) - 1, 0, -1):
        other = int(draw() * (last + 1))
        items[last], items[other] = items[other], items[last]
    return items


def answer_of(tokens: Sequence[int], end_of_thinking: int, stop: int) -> list[int] | None:
    """The tokens between the first end mark and the stop token; None if one of the two is missing.

    >>> answer_of([1, 2, 90, 5, 6, 91], 90, 91)
    [5, 6]
    """
    if not tokens or tokens[-1] != stop or end_of_thinking not in tokens:
        return None
    return list(tokens[tokens.index(end_of_thinking) + 1 : -1])
