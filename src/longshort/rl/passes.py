"""Pass@k: how many problems a model solves in k tries, without the bias of counting the first k of its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from longshort.data.problems import Problem, ProblemTask
from longshort.generation import SoftThinking, generate
from longshort.model import GPT

Draw = Callable[[list[list[int]], int], Tensor]
"""Tokens (B, T) after each prompt, -1 after a sequence's end, from the prompts and a seed."""


def pass_at_k(right: Iterable[int], samples: int, k: int) -> list[float]:
    """For each problem, the chance that k of its samples, drawn without putting back, hold a right one.

    With n samples of which c are right it is 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374); the mean over problems is
    Pass@k.

    >>> pass_at_k([0, 1, 4], samples=4, k=2)
    [0.0, 0.5, 1.0]
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k must be from 1 to the {samples} samples, got {k}")
    chances = [1 - math.comb(samples - count, k) / math.comb(samples, k) for count in range(samples + 1)]
    found = []
    for count in right:
        if not 0 <= count <= samples:
            raise ValueError(f"right must be counts from 0 to the {samples} samples, got {count}")
        found.append(chances[count])
    return found


def evaluate_problems(
    model: GPT,
    task: ProblemTask,
    thinking: SoftThinking | None,
    problems: Sequence[Problem],
    samples: int,
    *,
    seed: int = 0,
    batch: int = 1024,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    max_new_tokens: int | None = None,
    draw: Draw | None = None,
) -> list[int]:
    """How many of its samples are right, for each problem: those whose reward is 1 or more.

    Args:
        thinking: how the model thinks; None draws discrete tokens from the first.
        samples: sequences drawn for each problem.
        batch: sequences drawn at once. The samples depend on it, as on the seed.
        temperature, top_k, top_p: of discrete tokens.
        max_new_tokens: the task's if None.
        draw: draws in place of `generate`, as an engine that is kept from call to call; the options above are then its.

    >>> from longshort import GPTConfig
    >>> from longshort.rl import drawn, open_task
    >>> task = open_task("chains", {"modulus": 7, "operations": 1, "constants": 2})
    >>> model = GPT(GPTConfig(vocab_size=task.vocab_size, context=16, n_layers=1, width=8, n_heads=1))
    >>> len(evaluate_problems(model, task, None, [drawn(task, "test", 0, i) for i in range(3)], samples=2))
    3
    """
    length = task.max_new_tokens if max_new_tokens is None else max_new_tokens

    def generated(prompts: list[list[int]], number: int) -> Tensor:
        steps = generate(
            model,
            prompts,
            max_new_tokens=length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            thinking=thinking,
            stop=task.stop,
            seed=number,
        )
        return torch.stack(list(steps), dim=1)

    right = [0] * len(problems)
    asked = [index for index in range(len(problems)) for _ in range(samples)]
    was_training = model.training
    model.eval()
    try:
        for first in range(0, len(asked), batch):
            part = asked[first : first + batch]
            with torch.no_grad():
                drawn = (draw or generated)([problems[index].prompt for index in part], seed + first)
            for index, tokens in zip(part, drawn.tolist(), strict=True):
                written = [token for token in tokens if token >= 0]
                right[index] += task.reward(problems[index], written) >= 1
    finally:
        model.train(was_training)
    return right
