"""A model with shorter reaches, trained briefly to live with them, as a folder: what `longshort convert` does.

The folder is transformers': its own weights and configuration, in which the plan is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.files import new_folder, parse_json, write_json
from longshort.heads import HeadPlan
from longshort.hf.folder import full_disk_as_oserror
from longshort.hf.inspection.calls import make_observable
from longshort.hf.inspection.measure import Measured, measure
from longshort.hf.inspection.opened import OpenedFolder, quiet
from longshort.hf.inspection.planned import loss_on, with_plans
from longshort.hf.inspection.propose import Budget, plan_costs
from longshort.hf.inspection.record import ROWS, Progress, check_finite, checked_length, described, propose
from longshort.hf.inspection.texts import text_sequences
from longshort.version import __version__

RECORD = "conversion.json"
BATCH, RATE = 4, 1e-4


def convert(
    opened: OpenedFolder,
    out: Path,
    *,
    plans: Sequence[HeadPlan] | None = None,
    budget: Budget | None = None,
    first: bool = True,
    text: Path | None = None,
    length: int | None = None,
    rows: int = ROWS,
    steps: int = 0,
    batch: int = BATCH,
    rate: float = RATE,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Apply plans, or the best that are found within a budget, train for some steps, and write a folder.

    The first half of `rows` sequences is measured on, the other half gives the losses, and training takes what follows
    in the text, over and over if it is short.

    Args:
        first: try plans in which local heads also see the first keys.
        steps: of AdamW with a linear decay, without dropout; 0 leaves the weights as they are.
        batch: sequences per step.
        rate: the learning rate at the start.
    """
    if (plans is None) == (budget is None):
        raise ValueError("convert must have either plans or a budget, got both or neither")
    length = checked_length(opened, length)
    with quiet(), new_folder(out) as draft:
        make_observable(opened.model)
        least, wanted = 2 + bool(steps), rows + steps * batch
        tokens, source = text_sequences(opened.tokenizer, text, rows=wanted, length=length, least=least)
        kept = min(rows, len(tokens) - 1) if steps else len(tokens)
        seen, held_out, rest = tokens.to(opened.model.device).tensor_split([(kept + 1) // 2, kept])
        before = loss_on(opened.model, held_out, lambda done: progress("loss", done, len(held_out)))
        measured = measure(opened.model, seen, lambda done: progress("measuring", done, len(seen)))
        check_finite(measured)
        if budget is not None:
            found = propose(opened, measured, seen, held_out, budget, first, progress)
            plans = [HeadPlan.from_dict(plan) for plan in found["plans"]]
        plans = _checked(plans or (), measured)
        model = with_plans(opened.model, plans)
        planned = loss_on(model, held_out)
        losses = train(model, rest, steps=steps, batch=batch, rate=rate, progress=progress) if steps else []
        costs = plan_costs(plans, measured, opened.dtype.itemsize)
        record = {
            "longshort_conversion": 1,
            "version": __version__,
            "model": described(opened, measured),
            "text": {"source": source, "length": length, "held_out": len(held_out), "training": len(rest)},
            "plans": [plan.to_dict() for plan in plans],
            "costs": {"share": costs.share, "cache_share": costs.cache_share, "cache_bytes": costs.cache_bytes},
            "training": {"steps": steps, "batch": batch, "lr": rate, "losses": losses},
            "loss": {"before": before, "planned": planned, "after": loss_on(model, held_out) if steps else planned},
        }
        _write(draft, out, model, opened, record)
    return record


def _write(draft: Path, out: Path, model: PreTrainedModel, opened: OpenedFolder, record: dict[str, Any]) -> None:
    saved: Any = model
    with full_disk_as_oserror(out):
        saved.to(opened.dtype).save_pretrained(draft)
        opened.tokenizer.save_pretrained(draft)
    write_json(draft / RECORD, record)


def _checked(plans: Sequence[HeadPlan], measured: Measured) -> list[HeadPlan]:
    """The plans, if the model has as many layers and heads."""
    sizes = [plan.n_heads for plan in measured.plans]
    if [plan.n_heads for plan in plans] != sizes:
        got = f"{len(plans)} of {', '.join(sorted({str(plan.n_heads) for plan in plans}))}"
        raise ValueError(f"--plan must have {len(sizes)} layers of {sizes[0]} heads, got {got}")
    return list(plans)


def train(
    model: PreTrainedModel,
    sequences: Tensor,
    *,
    steps: int,
    batch: int = BATCH,
    rate: float = RATE,
    progress: Progress = lambda what, done, total: None,
) -> list[float]:
    """Train on sequences (B, T), in their order and over again; returns the loss of each step.

    The model stays in evaluation mode: dropout is off, which our attention does not have.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    device, losses = model.device.type, []
    half = torch.autocast(device, torch.bfloat16) if device == "cuda" else nullcontext()
    for step in range(steps):
        rows = sequences[torch.arange(step * batch, (step + 1) * batch) % len(sequences)]
        with half:
            loss = model(rows, labels=rows, use_cache=False).loss
        if not bool(loss.isfinite()):
            raise ValueError(
                f"the loss must stay finite, got {loss.item()} at step {step + 1}: lower --lr from {rate:g}"
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        progress(f"training, loss {losses[-1]:.3f}", step + 1, steps)
    return losses


def read_plans(path: Path) -> list[HeadPlan]:
    """Plans from a file: a record of `longshort inspect` with a proposal, one of a conversion, or a list of plans."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            found = found.get("proposal", found)["plans"]
        return [HeadPlan.from_dict(plan) for plan in found]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = "no plans: run longshort inspect with --budget" if isinstance(error, KeyError) else error
        raise ValueError(
            f"--plan must be a record of longshort inspect with a proposal, or a list of plans, got {path}: {reason}"
        ) from None
