"""A model with shorter reaches, trained briefly to live with them, as a folder: what `longshort convert` does.

The folder is transformers': its own weights and configuration, in which the plan is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from longshort.files import check_new_folder, new_folder, parse_json, write_json
from longshort.heads import HeadPlan
from longshort.hf.folder import full_disk_as_oserror
from longshort.hf.inspection.calls import make_observable
from longshort.hf.inspection.measure import Measured, measure
from longshort.hf.inspection.opened import OpenedFolder, quiet
from longshort.hf.inspection.planned import loss_on, with_plans
from longshort.hf.inspection.propose import Budget, plan_costs
from longshort.hf.inspection.record import ROWS, Progress, check_finite, checked_length, described, propose
from longshort.hf.inspection.texts import text_sequences
from longshort.hf.inspection.unfinished import Unfinished, model_digest, tokens_digest, unfinished
from longshort.hf.inspection.uptraining import BATCH, RATE, Interrupted, train
from longshort.version import __version__

RECORD = "conversion.json"


@quiet()
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
    in the text, over and over if it is short. What was done so far is kept in `OUT.unfinished`, which the same call
    resumes; other settings there are an error. It is removed at the end, and where the same call would fail again.

    Args:
        first: try plans in which local heads also see the first keys.
        steps: of AdamW with a linear decay, without dropout; 0 leaves the weights as they are.
        batch: sequences per step.
        rate: the learning rate at the start.
    """
    if (plans is None) == (budget is None):
        raise ValueError("convert must have either plans or a budget, got both or neither")
    length = checked_length(opened, length)
    check_new_folder(out)
    digest = model_digest(opened.model)
    make_observable(opened.model)
    least, wanted = 2 + bool(steps), rows + steps * batch
    tokens, source = text_sequences(opened.tokenizer, text, rows=wanted, length=length, least=least)
    settings = {
        "version": __version__,
        "--device": opened.model.device.type,
        "model": digest,
        "plan": None if plans is None else [plan.to_dict() for plan in plans],
        "--budget": None if budget is None else asdict(budget),
        "--first": first,
        "--length": length,
        "--rows": rows,
        "--steps": steps,
        "--batch": batch,
        "--lr": rate,
        "text": tokens_digest(tokens),
    }
    kept = min(rows, len(tokens) - 1) if steps else len(tokens)
    seen, held_out, rest = tokens.to(opened.model.device).tensor_split([(kept + 1) // 2, kept])
    with unfinished(out, settings) as begun:
        with begun.removed_if_wrong():
            try:
                measured = begun.measured or begun.keep(
                    _measured(opened, seen, held_out, plans, budget, first, progress, begun)
                )
            except KeyboardInterrupt:
                raise Interrupted("interrupted while measuring") from None
            model = with_plans(opened.model, [HeadPlan.from_dict(plan) for plan in measured["plans"]])
            options: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate, "progress": progress}
            losses = train(model, rest, begun.checkpoints, **options) if steps else []
        after = loss_on(model, held_out) if steps else measured["loss"]["planned"]
        record = {
            "longshort_conversion": 1,
            "version": __version__,
            "model": measured["model"],
            "text": {"source": source, "length": length, "held_out": len(held_out), "training": len(rest)},
            "plans": measured["plans"],
            "costs": measured["costs"],
            "training": {"steps": steps, "batch": batch, "lr": rate, "losses": losses},
            "loss": measured["loss"] | {"after": after},
        }
        with new_folder(out) as draft:
            _write(draft, out, model, opened, record)
        begun.remove()
    return record


def _measured(
    opened: OpenedFolder,
    seen: Tensor,
    held_out: Tensor,
    plans: Sequence[HeadPlan] | None,
    budget: Budget | None,
    first: bool,
    progress: Progress,
    begun: Unfinished,
) -> dict[str, Any]:
    """What the record has of the model, the plans and their losses before training; `begun` keeps each part."""

    def measured_heads() -> Measured:
        found = measure(opened.model, seen, lambda done: progress("measuring", done, len(seen)))
        check_finite(found)
        return found

    def loss_before() -> float:
        return loss_on(opened.model, held_out, lambda done: progress("loss", done, len(held_out)))

    measured = begun.heads(measured_heads)
    before = begun.loss("the model", loss_before)
    if budget is not None:
        found = propose(opened, measured, seen, held_out, budget, first, progress, begun.loss)
        plans = [HeadPlan.from_dict(plan) for plan in found["plans"]]
    plans = _checked(plans or (), measured)
    planned = begun.loss("the plan", lambda: loss_on(with_plans(opened.model, plans), held_out))
    costs = plan_costs(plans, measured, opened.dtype.itemsize)
    return {
        "model": described(opened, measured),
        "plans": [plan.to_dict() for plan in plans],
        "costs": {"share": costs.share, "cache_share": costs.cache_share, "cache_bytes": costs.cache_bytes},
        "loss": {"before": before, "planned": planned},
    }


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


def read_plans(path: Path) -> list[HeadPlan]:
    """Plans from a file: a record of `longshort inspect` with a proposal, one of a conversion, or a list of plans."""
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            found = found.get("proposal", found)
            found = found.get("plans") if isinstance(found, dict) else None
        if not isinstance(found, list) or not found or not all(isinstance(plan, dict) for plan in found):
            raise ValueError("no plans: run longshort inspect with --budget")
        return [HeadPlan.from_dict(plan) for plan in found]
    except (ValueError, TypeError, KeyError, AttributeError) as reason:
        raise ValueError(
            f"--plan must be a record of longshort inspect with a proposal, or a list of plans, got {path}: {reason}"
        ) from None
