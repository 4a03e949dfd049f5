"""The record of an inspection: what `longshort inspect` writes, and the page shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.heads import HeadPlan
from longshort.hf.inspection.calls import make_observable
from longshort.hf.inspection.measure import FIRST, Measured, copying, measure
from longshort.hf.inspection.opened import OpenedFolder, quiet
from longshort.hf.inspection.planned import bound_layers, loss_on, with_plans
from longshort.hf.inspection.propose import Budget, Candidate, candidates, plan_costs
from longshort.hf.inspection.texts import needles, repeated, text_sequences
from longshort.version import __version__

MARK = '"longshort_inspection":'
"""In every record."""
KEPT = {"window_99": 0.99, "window_999": 0.999}
"""Shares of the attention that windows keep."""
ASKED = 8
"""Sequences of random tokens, and of needles."""
LENGTH, ROWS = 1024, 16

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many sequences are done and how many there are."""
Kept = Callable[[str, Callable[[], float]], float]
"""Called with what a loss is of, and how to measure it; returns the loss."""


@quiet()
def inspect_model(
    opened: OpenedFolder,
    *,
    text: Path | None = None,
    length: int | None = None,
    rows: int = ROWS,
    budget: Budget | None = None,
    first: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure the heads of a model and, within a budget, propose a plan.

    The first half of the sequences is measured on, and chosen by; the other half gives the losses. With `first`, plans
    are tried too in which local heads see the first keys of the sequence.
    """
    length = checked_length(opened, length)
    make_observable(opened.model)
    tokens, source = text_sequences(opened.tokenizer, text, rows=rows, length=length, least=2)
    tokens = tokens.to(opened.model.device)
    seen, held_out = tokens.tensor_split([(len(tokens) + 1) // 2])
    measured = measure(opened.model, seen, lambda done: progress("measuring", done, len(seen)))
    check_finite(measured)
    scores = _scores(opened, length, progress)
    loss = loss_on(opened.model, held_out, lambda done: progress("loss", done, len(held_out)))
    record = {
        "longshort_inspection": 1,
        "version": __version__,
        "model": described(opened, measured),
        "text": {"source": source, "length": length, "measured": len(seen), "held_out": len(held_out)},
        "sees": [plan.to_dict() for plan in measured.plans],
        "heads": _numbers(measured) | scores,
        "beyond": _beyond(measured),
        "loss": loss,
    }
    if budget is not None:
        record["proposal"] = propose(opened, measured, seen, held_out, budget, first, progress)
    return record


def propose(
    opened: OpenedFolder,
    measured: Measured,
    seen: Tensor,
    held_out: Tensor,
    budget: Budget,
    first: bool = True,
    progress: Progress = lambda what, done, total: None,
    kept: Kept = lambda of, compute: compute(),
) -> dict[str, Any]:
    """The plan of least loss on the sequences seen, of those within the budget, and its loss on the others.

    Models other than ours keep the chosen plan. `kept` may know a loss already.
    """
    value_bytes = opened.dtype.itemsize
    firsts, bound = (0, FIRST) if first else (0,), bound_layers(opened.model)
    found = candidates(measured, budget, value_bytes=value_bytes, firsts=firsts, bound=bound)
    losses = []
    for number, candidate in enumerate(found, start=1):
        own = partial(_loss_with, opened.model, candidate.plans, seen)
        losses.append(kept(f"plan {number}", own))
        progress("plans", number, len(found))
    chosen = found[losses.index(min(losses))]
    loss = kept("the chosen plan", partial(_loss_with, opened.model, chosen.plans, held_out))
    with_plans(opened.model, chosen.plans)
    before = plan_costs(measured.plans, measured, value_bytes)
    return {
        "budget": {"share": budget.share, "cache_bytes": budget.cache_bytes, "value_bytes": value_bytes},
        "candidates": [_row(candidate, own) for candidate, own in zip(found, losses, strict=True)],
        "chosen": found.index(chosen),
        "plans": [plan.to_dict() for plan in chosen.plans],
        "costs": _costs(chosen) | {"full_cache_bytes": before.full_cache_bytes, "share_before": before.share},
        "loss": loss,
    }


def _loss_with(model: PreTrainedModel, plans: Sequence[HeadPlan], sequences: Tensor) -> float:
    return loss_on(with_plans(model, plans), sequences)


def _row(candidate: Candidate, loss: float) -> dict[str, Any]:
    return {"way": candidate.way, "first": candidate.first, "lost": candidate.lost} | _costs(candidate) | {"loss": loss}


def _costs(candidate: Candidate) -> dict[str, float]:
    found = candidate.costs
    return {"share": found.share, "cache_share": found.cache_share, "cache_bytes": found.cache_bytes}


def checked_length(opened: OpenedFolder, length: int | None) -> int:
    """Tokens per sequence, within the model's positions."""
    if length is None:
        return min(LENGTH, opened.context)
    if not 4 * FIRST <= length <= opened.context:
        raise ValueError(f"--length must be from {4 * FIRST} to the model's {opened.context:,} positions, got {length}")
    return length


def check_finite(measured: Measured) -> None:
    """Raise where the model gives NaN or infinities."""
    whole = measured.mass.sum(-1) + measured.largest_logit
    if not bool(whole.isfinite().all()):
        layer = int((~whole.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"model must give finite numbers, got some that are not in the attention of layer {layer}")


def _scores(opened: OpenedFolder, length: int, progress: Progress) -> dict[str, Any]:
    """Induction and retrieval, layers by heads; retrieval is None where the length has no room for a needle."""
    found: dict[str, Any] = {}
    made = {
        "induction": repeated(opened.tokenizer, rows=ASKED, length=min(length, 512)),
        "retrieval": needles(opened.tokenizer, rows=ASKED, length=length),
    }
    for name, asked in made.items():
        total = len(asked)
        done = lambda number, name=name, total=total: progress(name, number, total)  # noqa: E731
        found[name] = _rounded(copying(opened.model, asked, done)) if asked else None
    return found


def described(opened: OpenedFolder, measured: Measured) -> dict[str, Any]:
    """What a model is, in numbers."""
    config = opened.model.config
    return {
        "folder": opened.folder.name or str(opened.folder),
        "model_type": config.model_type,
        "parameters": sum(p.numel() for p in opened.model.parameters()),
        "layers": len(measured.plans),
        "heads": measured.plans[0].n_heads,
        "kv_heads": measured.n_kv_heads,
        "head_dim": measured.head_dim,
        "context": opened.context,
        "dtype": str(opened.dtype).removeprefix("torch."),
    }


def _numbers(measured: Measured) -> dict[str, Any]:
    """One list of lists, layers by heads, for each measure."""
    found: dict[str, Any] = {}
    for name, keep in KEPT.items():
        found[name] = measured.windows(keep).tolist()
        found[f"{name}_first"] = measured.windows(keep, first=True).tolist()
    for name in ("sink", "learned_sink", "entropy", "largest_logit"):
        found[name] = _rounded(getattr(measured, name))
    return found


def _beyond(measured: Measured) -> dict[str, Any]:
    """Attention beyond windows of 1, 2, 4, ... keys, and beyond those and the first keys."""
    windows = [1 << n for n in range(measured.length.bit_length()) if 1 << n < measured.length]
    plain, without_first = (measured.beyond(first=first)[..., windows] for first in (False, True))
    return {"windows": windows, "attention": _rounded(plain), "attention_first": _rounded(without_first)}


def _rounded(values: torch.Tensor) -> Any:
    return torch.round(values.double(), decimals=6).tolist()
