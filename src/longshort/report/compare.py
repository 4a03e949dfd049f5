"""Compare variants on the same data, seeds and steps; resumable, with a table of means and spreads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longshort.files import check_replaceable, write_json
from longshort.report.page import PAGE, check_page
from longshort.runs import METRICS, Run, RunError, load_run
from longshort.train import ConfigError, TrainConfig
from longshort.train.identity import different_setting
from longshort.train.sweeps.variants import VARIANTS

SUMMARY = "comparison.json"


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: a variant with a seed."""

    variant: str
    seed: int
    config: TrainConfig

    @property
    def out(self) -> Path:
        return Path(self.config.run.out)

    @property
    def is_finished(self) -> bool:
        """Whether an earlier call took all its steps, or more; the device and the folders do not matter."""
        if not (self.out / METRICS).is_file():
            return False
        try:
            run = load_run(self.out)
            same = different_setting(self.config, run.config) is None
        except (RunError, ConfigError):  # from another version, or cut short: the trainer decides whether to resume it
            return False
        return same and run.is_finished(self.config.run.steps)


def plan_trials(config: TrainConfig, variants: Sequence[str], seeds: Iterable[int], out: Path) -> list[Trial]:
    """Every variant with every seed, one seed after another, so that an interrupted comparison has complete seeds."""
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown or not variants:
        raise ConfigError(f"variants must be among {', '.join(VARIANTS)}, got {', '.join(unknown) or 'none'}")
    return trials_of({name: VARIANTS[name](config) for name in variants}, seeds, out)


def trials_of(configs: Mapping[str, TrainConfig], seeds: Iterable[int], out: Path) -> list[Trial]:
    """Every named configuration with every seed, one seed after another, each in its own folder."""
    trials = []
    for seed in seeds:
        for name, config in configs.items():
            run = replace(config.run, variant=name, seed=seed, out=str(out / f"{name}-seed{seed}"))
            trials.append(Trial(name, seed, replace(config, run=run)))
    return trials


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
        "perplexity": None if mean is None else math.exp(min(mean, 700.0)),
        "accuracy": statistics.fmean(accuracies) if accuracies else None,
        "best_loss": _mean([run.best_loss for run in runs]),
        "max_logit": max(logits) if all_finite else None,
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


def check_steps(trials: Sequence[Trial]) -> None:
    """Raise if a run of an earlier call took more steps than the others would: they could not be compared."""
    for trial in trials:
        steps = trial.config.run.steps
        if trial.is_finished and (end := load_run(trial.out).end) is not None and end.step > steps:
            raise ConfigError(
                f"{trial.out}: has taken {end.step:,} steps, more than run.steps={steps}; set run.steps={end.step} for "
                "all, or choose another --out"
            )


def save_summary(trials: Sequence[Trial], out: Path) -> list[dict[str, Any]]:
    """Summarize, and write the rows as JSON into the comparison's folder."""
    rows = summarize(trials)
    write_json(out / SUMMARY, rows)
    return rows
