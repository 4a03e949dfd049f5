"""Perplexity of a model whose scores were transformed in training: as trained, and with a temperature fitted later.

The e-exponentiated loss trains softmax(h(s)), so the scores s have the wrong scale for a plain softmax. One number
corrects that: a temperature fitted on held-out text. A model trained with plain cross-entropy gets one as well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.data.stream import TokenStream
from longshort.model import GPT
from longshort.train.evaluation.held_out import raw_scores

FITTED_ROWS = 4096
"""The most positions that a temperature is fitted on."""
_HALVINGS = 50


@torch.no_grad()
def fit_temperature(scores: Tensor, targets: Tensor, *, lowest: float = 1e-3, highest: float = 1e6) -> float:
    """The temperature T at which the mean cross-entropy of softmax(scores / T) is least; scores (N, V), targets (N,).

    The loss is convex in 1 / T, so bisection finds where its slope, the expected score minus the target's, is 0. If
    that lies outside the bounds, the nearer bound is returned.

    >>> scores = torch.tensor([[0.0, 8.0]] * 4)
    >>> round(8 / fit_temperature(scores, torch.tensor([1, 1, 1, 0])), 3)  # log(3): three in four are right
    1.099
    """
    scores = scores.float()
    low, high = math.log(1 / highest), math.log(1 / lowest)
    picked = scores.gather(-1, targets[:, None]).mean()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        expected = ((math.exp(middle) * scores).softmax(-1) * scores).sum(-1).mean()
        low, high = (low, middle) if expected > picked else (middle, high)
    return math.exp(-(low + high) / 2)


@torch.no_grad()
def score_sample(
    model: GPT, tokens: Tensor, targets: Tensor, segments: Tensor | None, precision: str
) -> tuple[Tensor, Tensor]:
    """Scores s (N, V) and targets (N,) at evenly spaced positions of a batch, at most `FITTED_ROWS`."""
    scores = raw_scores(model, tokens, segments, precision)[:, -targets.shape[1] :].flatten(0, 1)
    kept = torch.linspace(0, len(scores) - 1, min(FITTED_ROWS, len(scores)), device=scores.device).long()
    return scores[kept], targets.flatten()[kept]


@torch.no_grad()
def calibrated_losses(
    model: GPT, stream: TokenStream, *, batches: int, device: torch.device, precision: str
) -> dict[str, float]:
    """Mean losses over the first `batches` batches of a stream; temperatures are fitted on the batch after them.

    `loss` is that of softmax(h(s)), as trained; `scores_loss` that of softmax(s / scores_temperature);
    `transformed_loss` that of softmax(h(s) / transformed_temperature). Without a transform the last two are equal.
    """
    model.eval()
    h = model.config.loss.transform

    def batch(number: int) -> tuple[Tensor, Tensor, Tensor | None]:
        tokens, targets, segments = (None if x is None else x.to(device) for x in stream.batch(number)[:3])
        return tokens, targets, segments  # type: ignore[return-value]

    scores, answers = score_sample(model, *batch(batches), precision)
    temperatures = {"scores": fit_temperature(scores, answers), "transformed": fit_temperature(h(scores), answers)}
    totals = dict.fromkeys(("loss", "scores_loss", "transformed_loss"), 0.0)
    for number in range(batches):
        tokens, targets, segments = batch(number)
        scores = raw_scores(model, tokens, segments, precision).flatten(0, 1)
        for name, logits in (
            ("loss", h(scores)),
            ("scores_loss", scores / temperatures["scores"]),
            ("transformed_loss", h(scores) / temperatures["transformed"]),
        ):
            totals[name] += float(F.cross_entropy(logits, targets.flatten())) / batches
    return totals | {f"{name}_temperature": value for name, value in temperatures.items()}
