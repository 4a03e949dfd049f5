"""The same data, seeds, steps and budget for several variants; resumable, with a table of mean and spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshort.files import write_json
from longshort.train import ConfigError, TrainConfig
from longshort.train.log import METRICS, largest_logit, read_log
from longshort.train.record import difference
from longshort.train.variants import VARIANTS

SUMMARY = "comparison.json"


@dataclass(frozen=True)
class Arm:
    """One run of a comparison."""

    variant: str
    seed: int
    config: TrainConfig

    @property
    def out(self) -> Path:
        return Path(self.config.run.out)

    @property
    def is_finished(self) -> bool:
        """Has an earlier call taken all its steps, or more? Where, on what device and from which folder is the same."""
        if not (self.out / METRICS).is_file():
            return False
        records = read_log(self.out)
        if not records or not self._is_recorded(records[0]):
            return False  # the trainer decides whether it may go on with it
        ends = [record for record in records if record["kind"] == "end"]
        return bool(ends) and ends[-1]["status"] == "finished" and ends[-1]["step"] >= self.config.run.steps

    def _is_recorded(self, first: dict[str, Any]) -> bool:
        try:
            return difference(self.config, first["config"]) is None
        except (KeyError, ValueError):  # of another version, whose keys are unknown here
            return False


def plan_arms(config: TrainConfig, variants: Sequence[str], seeds: Iterable[int], out: Path) -> list[Arm]:
    """Every variant with every seed, seed by seed, so that an interrupted comparison has whole seeds."""
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown or not variants:
        raise ConfigError(f"variants must be among {', '.join(VARIANTS)}, got {', '.join(unknown) or 'none'}")
    return arms_of({name: VARIANTS[name](config) for name in variants}, seeds, out)


def arms_of(configs: Mapping[str, TrainConfig], seeds: Iterable[int], out: Path) -> list[Arm]:
    """Every named configuration with every seed, seed by seed, each with a folder of its own."""
    arms = []
    for seed in seeds:
        for name, config in configs.items():
            run = replace(config.run, variant=name, seed=seed, out=str(out / f"{name}-seed{seed}"))
            arms.append(Arm(name, seed, replace(config, run=run)))
    return arms


def summarize(arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """One row a variant: means over seeds, and the spread (largest minus smallest) of the validation loss."""
    rows = []
    for variant in dict.fromkeys(arm.variant for arm in arms):
        runs = [_outcome(read_log(arm.out)) for arm in arms if arm.variant == variant]
        losses = [run["final_loss"] for run in runs]
        mean = _mean(losses)
        rows.append(
            {
                "variant": variant,
                "seeds": len(runs),
                "parameters": runs[0]["parameters"],
                "validation_loss": mean,
                "spread": None if mean is None else max(losses) - min(losses),
                "perplexity": None if mean is None else math.exp(min(mean, 700.0)),
                "accuracy": _mean_accuracy([run["accuracy"] for run in runs]),
                "best_loss": _mean([run["best_loss"] for run in runs]),
                "max_logit": _largest([run["max_logit"] for run in runs]),
                "tokens_per_second": statistics.fmean(run["tokens_per_second"] for run in runs),
                "spikes": sum(run["spikes"] for run in runs),
            }
        )
    return rows


def _outcome(records: list[dict[str, Any]]) -> dict[str, Any]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append(record)
    evaluations = [math.inf if e["loss"] is None else e["loss"] for e in by_kind.get("eval", [])]
    steps = by_kind.get("train", [])  # none where the guard skipped every step
    return {
        "parameters": by_kind["run"][0]["parameters"],
        "final_loss": evaluations[-1] if evaluations else math.inf,
        "accuracy": by_kind["eval"][-1].get("accuracy") if evaluations else None,
        "best_loss": min(evaluations, default=math.inf),
        "max_logit": _largest([largest_logit(record) for record in steps if record.get("logit_max")]),
        "tokens_per_second": statistics.median(record["tokens_per_second"] for record in steps) if steps else 0.0,
        "spikes": len(by_kind.get("spike", [])),
    }


def _largest(values: list[float | None]) -> float | None:
    """The largest; None if any is not finite, or there is none."""
    return None if not values or None in values else max(v for v in values if v is not None)


def _mean(values: list[float]) -> float | None:
    """The mean; None if any is not finite, since a diverged seed has no mean."""
    return statistics.fmean(values) if all(math.isfinite(v) for v in values) else None


def _mean_accuracy(values: list[float | None]) -> float | None:
    """The mean; None where the runs have no task, and so no answers to be right about."""
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def save_summary(arms: Sequence[Arm], out: Path) -> list[dict[str, Any]]:
    """Summarize, and write the rows as JSON into the comparison's folder."""
    rows = summarize(arms)
    write_json(out / SUMMARY, rows)
    return rows
