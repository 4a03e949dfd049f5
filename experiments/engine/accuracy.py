"""The numbers of runs on tasks: how many answers of the test split each arm has right, over its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.engine import measures, published
from experiments.engine.measures import Outcome

_RUN = {"eval_batches": 16, "save_every": 0, "save_best": False, "keep": 1}
SECTIONS: dict[str, dict[str, Any]] = {
    "optimizer": {"lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup": 300, "floor": 0.0},
    "run": _RUN,
    "telemetry": {"logits_every": 50},
}
"""Of the configuration, that the recipes on tasks share."""
QUICK_SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"batch_size": 4},
    "schedule": {"kind": "constant", "warmup": 2},
    "run": {**_RUN, "eval_batches": 1},
    "telemetry": {"logits_every": 4},
}


def share_right(outcome: Outcome) -> float | None:
    """Over the whole test split where the run came to its end, else over the last evaluation's rows."""
    found = outcome.after.get("test", {}).get("accuracy")
    return outcome.run.final_accuracy if found is None else float(found)


def row(arm: str, runs: Sequence[Outcome]) -> dict[str, Any]:
    """What an arm reached: means over its seeds; None where it was not measured."""
    shares = [share for outcome in runs if (share := share_right(outcome)) is not None]
    losses = [loss for outcome in runs if (loss := outcome.run.final_loss) is not None]
    peaks = [peak for outcome in runs if (peak := outcome.largest_logit) is not None]
    exact = [outcome.after["test"]["exact"] for outcome in runs if "exact" in outcome.after.get("test", {})]
    return {
        "arm": arm,
        "seeds": [outcome.run.seed for outcome in runs],
        "steps": [outcome.run.last_step for outcome in runs],
        "accuracy": statistics.fmean(shares) if shares else None,
        "accuracies": shares,
        "exact": statistics.fmean(exact) if exact else None,
        "validation_loss": statistics.fmean(losses) if losses else None,
        "max_logit": max(peaks, default=None),
        "diverged": sum(outcome.diverged for outcome in runs),
    }


def rows(
    found: Iterable[Outcome], folder: Path, names: Sequence[str], parts: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row an arm, in the order of `names`, with what `parts` makes of its name; published runs included."""
    own = {name: row(name, runs) | parts(name) for name, runs in measures.by_arm(found, names).items()}
    return published.with_earlier_rows(own, folder, names)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """One line an arm."""
    header = ("arm", "seeds", "steps", "test accuracy", "lowest and highest", "validation loss", "max abs logit")
    return measures.markdown(
        header,
        [
            (
                r["arm"],
                len(r["seeds"]),
                max(r["steps"]),
                percent(r["accuracy"]),
                f"{percent(min(r['accuracies']))} to {percent(max(r['accuracies']))}"
                if len(r["accuracies"]) > 1
                else "",
                measures.shown(r["validation_loss"]),
                measures.shown(r["max_logit"], 3),
            )
            for r in rows
        ],
    )


def percent(share: float | None) -> str:
    """
    >>> percent(0.4567), percent(None)
    ('45.7 %', 'not measured')
    """
    return "not measured" if share is None else f"{100 * share:.1f} %"
