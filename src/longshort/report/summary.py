"""The table of a comparison: means and spreads over the seeds of each variant, saved beside its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longshort.files import check_replaceable, write_json
from longshort.report.page import PAGE, check_page
from longshort.runs import Run, load_run
from longshort.train.sweeps.trials import Trial

SUMMARY = "comparison.json"


def summarize(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """One row per variant: means over seeds, and the spread (largest minus smallest) of the validation loss."""
    by_variant: dict[str, list[Run]] = {}
    for trial in trials:
        by_variant.setdefault(trial.variant, []).append(load_run(trial.out))
    return [_row(variant, runs) for variant, runs in by_variant.items()]


def _row(variant: str, runs: Sequence[Run]) -> dict[str, Any]:
    losses = [run.final_loss for run in runs]
    mean = _mean(losses)
    accuracies = [run.final_accuracy for run in runs if run.final_accuracy is not None]
    logits = [run.largest_logit for run in runs if run.largest_logit is not None]
    all_finite = bool(logits) and all(run.logits_are_finite for run in runs)
    return {
        "variant": variant,
        "seeds": len(runs),
        "parameters": runs[0].parameters,
        "validation_loss": mean,
        "spread": None if mean is None else max(loss or 0.0 for loss in losses) - min(loss or 0.0 for loss in losses),
        "perplexity": _mean([run.final_perplexity for run in runs]),
        "accuracy": statistics.fmean(accuracies) if accuracies else None,
        "best_loss": _mean([run.best_loss for run in runs]),
        "max_logit": max(logits) if all_finite else None,
        "logits_recorded": bool(logits),
        "tokens_per_second": statistics.fmean(run.speed or 0.0 for run in runs),
        "spikes": sum(len(run.spikes) for run in runs),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if any is not finite or missing, since a diverged seed has no mean."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.fmean(finite) if finite and len(finite) == len(values) else None


def check_results(out: Path) -> None:
    """Raise, before any run starts, if the comparison's table or page would overwrite another file."""
    check_replaceable(out / SUMMARY, '"variant"')
    check_page(out / PAGE)


def save_summary(trials: Sequence[Trial], out: Path) -> list[dict[str, Any]]:
    """Summarize, and write the rows as JSON into the comparison's folder."""
    rows = summarize(trials)
    write_json(out / SUMMARY, rows)
    return rows
