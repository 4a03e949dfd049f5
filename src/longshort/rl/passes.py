"""Pass@k: how many problems a model solves in k tries, without the bias of counting the first k of its samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from longshort.data.problems import Problem, ProblemTask
from longshort.generation import SoftThinking
from longshort.model import GPT
from longshort.numeric import check_count, is_integral
from longshort.rl.answers import sequences
from longshort.rl.rewards import verified
from longshort.rl.sampler import Sampler


def pass_at_k(right: Iterable[int], samples: int, k: int) -> list[float]:
    """For each problem, the chance that k of its samples, drawn without putting back, hold a right one.

    With n samples of which c are right it is 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374); the mean over problems is
    Pass@k.

    >>> pass_at_k([0, 1, 4], samples=4, k=2)
    [0.0, 0.5, 1.0]
    """
    check_count("samples", samples)
    if not is_integral(k) or not 1 <= k <= samples:
        raise ValueError(f"k must be from 1 to the {samples} samples, got {k!r}")
    chances = [1 - math.comb(samples - count, k) / math.comb(samples, k) for count in range(samples + 1)]
    found = []
    for count in right:
        if not is_integral(count) or not 0 <= count <= samples:
            raise ValueError(f"right must be counts from 0 to the {samples} samples, got {count!r}")
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
    max_new_tokens: int | None = None,
    **options: Any,
) -> list[int]:
    """How many of its samples are right, for each problem: those whose reward is 1 or more. A sample whose
    verifier raises is not.

    Args:
        thinking: how the model thinks; None draws discrete tokens from the first.
        samples: sequences drawn for each problem.
        batch: most sequences drawn at once. The samples depend on it, as on the seed.
        max_new_tokens: the task's if None.
        options: those of `Sampler`, such as temperature, top_k and top_p of discrete tokens.

    >>> from longshort import GPTConfig
    >>> from longshort.rl import drawn, open_task
    >>> task = open_task("chains", {"modulus": 7, "operations": 1, "constants": 2})
    >>> model = GPT(GPTConfig(vocab_size=task.vocab_size, context=16, n_layers=1, width=8, n_heads=1))
    >>> len(evaluate_problems(model, task, None, [drawn(task, "test", 0, i) for i in range(3)], samples=2))
    3
    """
    if not problems:
        raise ValueError("problems must be at least one, got none")
    for name, count in (("samples", samples), ("batch", batch)):
        check_count(name, count)
    if not is_integral(seed):
        raise ValueError(f"seed must be an integer, got {seed!r}")
    asked = [index for index in range(len(problems)) for _ in range(samples)]
    batch = min(batch, len(asked))
    sampler = Sampler(
        model,
        thinking,
        batch_size=batch,
        max_prompt=task.max_prompt,
        max_new_tokens=task.max_new_tokens if max_new_tokens is None else max_new_tokens,
        stop=task.stop,
        **options,
    )
    right = [0] * len(problems)
    for first in range(0, len(asked), batch):
        part = asked[first : first + batch]
        filled = part + asked[: batch - len(part)]  # a sampler draws as many sequences every time
        drawn = sampler.draw([problems[index].prompt for index in filled], seed=seed + first)
        rewards = verified(task, [problems[index] for index in part], sequences(drawn)[: len(part)])
        for index, reward in zip(part, rewards.values.tolist(), strict=True):
            right[index] += reward >= 1
    return right
