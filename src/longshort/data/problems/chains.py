"""Chains: a number goes through operations modulo a prime, one after the other; each thought is one number.

A mixture of numbers means nothing here, so soft thinking should not help: the counterpart of `Frontiers`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from longshort.data.problems.problem import Problem, ProblemTask, answer_of, below
from longshort.numeric import check_count

SIGNS = ("+", "-", "*")


@dataclass(frozen=True, kw_only=True)
class Chains(ProblemTask):
    """The result of operations on a number, each with a constant of its own: add, subtract or multiply.

    Prompt: a number, then for each operation its sign and its constant, then a mark. Solution: the number after each
    operation, the end mark, the last number once more. All problems of one setting have the same length.

    >>> task = Chains(operations=3)
    >>> problem = task.problem(random.Random(0))
    >>> task.text(problem.prompt), task.text(problem.solution)
    ('841 * 4 + 5 - 8 =', '373 378 370 | 370 .')
    >>> task.reward(problem, problem.solution)
    1.0
    """

    modulus: int = 997
    """Results are taken modulo this; numbers below it are tokens."""
    operations: int = 8
    """Operations of a problem, as many as thinking tokens."""
    constants: int = 9
    """Constants are from 1 to this. There are 3 x constants x modulus operations to learn by heart."""

    def __post_init__(self) -> None:
        check_count("modulus", self.modulus, 2, 100_000)
        check_count("operations", self.operations, 1, 1000)
        check_count("constants", self.constants, 1, self.modulus - 1)

    @property
    def vocab_size(self) -> int:
        return self.modulus + len(SIGNS) + 3

    @property
    def end_of_thinking(self) -> int:
        return self.modulus + len(SIGNS)

    @property
    def stop(self) -> int:
        return self.modulus + len(SIGNS) + 1

    @property
    def equals(self) -> int:
        """The mark that ends the prompt."""
        return self.modulus + len(SIGNS) + 2

    @property
    def max_prompt(self) -> int:
        return 2 * self.operations + 2

    @property
    def max_new_tokens(self) -> int:
        return self.operations + 3

    def problem(self, rng: random.Random) -> Problem:
        value = below(rng, self.modulus)
        prompt, values = [value], []
        for _ in range(self.operations):
            sign, constant = below(rng, len(SIGNS)), 1 + below(rng, self.constants)
            value = (value + constant, value - constant, value * constant)[sign] % self.modulus
            prompt += [self.modulus + sign, constant]
            values.append(value)
        return Problem(
            prompt=[*prompt, self.equals], solution=[*values, self.end_of_thinking, value, self.stop], answer=value
        )

    def reward(self, problem: Problem, tokens: list[int]) -> float:
        """1 if the answer is the one right number; else 0. The thinking is free."""
        return float(answer_of(tokens, self.end_of_thinking, self.stop) == [problem.answer])

    def text(self, tokens: Iterable[int]) -> str:
        marks = [*SIGNS, "|", ".", "="]
        return " ".join(
            marks[token - self.modulus] if self.modulus <= token < self.vocab_size else str(token) for token in tokens
        )
