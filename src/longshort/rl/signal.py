"""How much of a policy gradient is signal and how much noise: by parts of a rollout, or by the halves of an update."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from longshort.model import GPT
from longshort.numeric import is_integral
from longshort.rl.log_probs import Form
from longshort.rl.rollout import Rollout


class Signal(NamedTuple):
    """Of gradients that are drawn independently, the squared length of their mean, and their variance."""

    signal: float
    """Squared length of the expected gradient; unbiased, so that it can be below 0 where noise drowns it."""
    noise: float
    """Variance of a single gradient, summed over its numbers."""

    @property
    def ratio(self) -> float:
        """Signal to noise of a single gradient; a mean of n gradients has n times as much. At least 0."""
        return max(self.signal, 0.0) / self.noise if self.noise else float("inf")


def signal_of(gradients: Iterable[Tensor]) -> Signal:
    """Signal and noise of at least two gradients (P,), of which only two are held at a time.

    >>> signal_of([torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])])
    Signal(signal=1.0, noise=2.0)
    """
    total, squares, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for gradient in gradients:
        gradient = gradient.double()
        total, squares, count = total.to(gradient.device) + gradient, squares + gradient.square().sum().cpu(), count + 1
    if count < 2:
        raise ValueError(f"gradients must be at least 2, got {count}")
    mean = (total / count).square().sum().item()
    noise = max((squares.item() - count * mean) / (count - 1), 0.0)
    return Signal(mean - noise / count, noise)


def score_signal(model: GPT, drawn: Rollout, advantages: Tensor, *, form: Form = "paper", parts: int = 16) -> Signal:
    """Signal and noise per sequence of the policy gradient, the mean over tokens of advantage times score.

    The gradient is computed for each of `parts` equal parts of the rollout, in order. Sequences whose advantages depend
    on each other, as those of a group, belong in one part. The ratio of two forms' ratios, on the same rollout and
    parts, says how many times as many rollouts the noisier form needs.

    Args:
        advantages: (B,).

    >>> from longshort import GPTConfig
    >>> from longshort.generation import SoftThinking
    >>> from longshort.rl import rollout
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> drawn = rollout(model, [[1]] * 8, SoftThinking(end=10), max_new_tokens=6, seed=0)
    >>> advantages = torch.tensor([1.0, -1.0]).repeat(4)
    >>> gumbel = score_signal(model, drawn, advantages, form="paper", parts=4)
    >>> gumbel.noise > 2 * score_signal(model, drawn, advantages, form="categorical", parts=4).noise
    True
    """
    size = len(drawn.tokens)
    if not is_integral(parts) or not 2 <= parts <= size or size % parts:
        raise ValueError(f"parts must be an integer >= 2 that divides the {size} sequences, got {parts!r}")
    if advantages.shape != (size,):
        raise ValueError(f"advantages must have shape ({size},), got {tuple(advantages.shape)}")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    each = size // parts

    def gradient(first: int) -> Tensor:
        chosen = slice(first, first + each)
        part = drawn.part(chosen)
        weighted = part.log_probs(model, form=form) * advantages[chosen, None]
        found = torch.autograd.grad(weighted.sum() / part.mask.sum().clamp(min=1), parameters, allow_unused=True)
        return torch.cat([g.flatten() for g in found if g is not None])

    signal, noise = signal_of(gradient(first) for first in range(0, size, each))
    return Signal(signal, noise * each)


def signal_and_noise(first: list[Tensor], whole: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Estimates of |G|^2 and of the variance about it, for a gradient that is the sum of two halves.

    The halves are of independent problems, so with h = G + n the gradient of a half by itself, E<h1, h2> = |G|^2, and
    |h1 - h2|^2 / 4 is in mean the variance of the whole gradient. Single estimates are noisy, and the first may be
    negative: average each over steps before dividing.

    Args:
        first: the first half's part of the sum.
        whole: the sum.

    >>> first, whole = [torch.tensor([1.0, 0.5])], [torch.tensor([2.0, 0.0])]
    >>> signal_and_noise(first, whole)
    (tensor(3.), tensor(1.))
    """
    second = torch._foreach_sub(whole, first)
    dot = torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
    apart = torch.stack(torch._foreach_norm(torch._foreach_sub(first, second))).square().sum()
    return 4 * dot, apart
