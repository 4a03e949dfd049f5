"""Loss of a model on held-out tokens: a few fixed batches during training, or a whole split, by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longshort.data.stream import Batch, Window, document_numbers, targets_of_window, windows
from longshort.data.tokens import TokenFile
from longshort.model import GPT
from longshort.nn.modes import evaluating
from longshort.train.machine.distributed import World
from longshort.train.machine.precision import autocast

AT_ONCE = 1 << 14
"""Tokens of a forward pass without gradients, or one sequence if that has more."""


def eagerly() -> AbstractContextManager[Any]:
    """Run without torch.compile: compiling the blocks again for each use other than training is not worth it."""
    return torch.compiler.set_stance("force_eager")


@torch.no_grad()
def validation_scores(model: nn.Module, batches: Iterable[Batch], *, world: World, precision: str) -> dict[str, float]:
    """Mean loss over some batches, of which this rank computes its share."""
    total, count = torch.zeros((), device=world.device), 0
    with evaluating(model):
        for batch in batches:
            count += 1
            tokens, targets, segments = (None if x is None else x.to(world.device) for x in batch[:3])
            with autocast(precision, world.device):
                total += model(tokens, targets, segments=segments).loss
    return {"loss": float(world.mean(total / count))}


@torch.no_grad()
def evaluate_split(
    model: GPT,
    tokens: TokenFile,
    *,
    length: int,
    stride: int,
    device: torch.device,
    precision: str = "auto",
    bucket: int = 256,
    limit: int | None = None,
    segments: bool = False,
    beginning: Sequence[int] = (),
    temperature: float | None = None,
    progress: Callable[[int], None] = lambda windows_done: None,
) -> dict[str, Any]:
    """Perplexity over a whole split with a sliding window, and by bucket of positions in the window.

    Windows of `length` tokens start every `stride` tokens; each token's loss counts once, in the first window that
    holds it. Buckets count every position of every window instead, since they show what context is worth. With
    `segments`, tokens see only their own document, as in training with data.segments. A `beginning` is the first of
    the `length` tokens of every window and never a target. Losses are those of the model's logits; with a
    `temperature`, those of its untransformed scores divided by it. Up to 8 windows are scored at once, fewer if they
    are long.
    """
    model.eval()
    bucket = min(bucket, length)  # torch takes no integer of more than 64 bits
    n_buckets = math.ceil(length / bucket)
    sums, counts = torch.zeros(n_buckets, dtype=torch.float64), torch.zeros(n_buckets, dtype=torch.float64)
    place = torch.arange(length)[-targets_of_window(length, beginning) :] // bucket
    total, counted, done = 0.0, 0, 0
    for group in batched(windows(tokens, length, stride, limit, beginning), max(1, min(8, AT_ONCE // length))):
        rows = torch.stack([window.tokens for window in group]).to(device)
        targets = torch.stack([window.targets for window in group]).to(device)
        documents = document_numbers(rows, tokens.end_of_document) if segments else None
        losses = _token_losses(model, rows, targets, documents, precision, temperature).double().cpu()
        for window, row in zip(group, losses, strict=True):
            total, counted = total + float(row[window.fresh :].sum()), counted + len(row) - window.fresh
            sums.index_add_(0, place, row)
            counts.index_add_(0, place, torch.ones_like(row))
        done += len(group)
        progress(done)
    means = (sums / counts).tolist()
    names = [f"{i * bucket}-{min((i + 1) * bucket, length) - 1}" for i in range(n_buckets)]
    scored = [i for i in range(n_buckets) if counts[i]]  # a long beginning may fill the first ones
    return {
        "loss": total / counted,
        "perplexity": math.exp(min(total / counted, 700.0)),
        "tokens": counted,
        "windows": done,
        "length": length,
        "stride": stride,
        "buckets": [
            {"positions": names[i], "loss": means[i], "perplexity": math.exp(min(means[i], 700.0))} for i in scored
        ],
    }


def batched(items: Iterable[Window], size: int) -> Iterator[list[Window]]:
    """Lists of at most `size` (itertools.batched is newer than Python 3.11)."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def raw_scores(model: GPT, tokens: Tensor, segments: Tensor | None, precision: str) -> Tensor:
    """(B, T, V) fp32: the model's scores, that is, its logits before the loss's transform."""
    with autocast(precision, tokens.device):
        return model.scores(model.hidden(tokens, segments=segments)[0]).float()


def _token_losses(
    model: GPT, rows: Tensor, targets: Tensor, segments: Tensor | None, precision: str, temperature: float | None
) -> Tensor:
    if temperature is None:
        with autocast(precision, rows.device):
            logits = model(rows, segments=segments).logits.float()
    else:
        logits = raw_scores(model, rows, segments, precision) / temperature
    logits = logits[:, -targets.shape[1] :]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
