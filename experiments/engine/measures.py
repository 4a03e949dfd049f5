"""From runs to data: what each variant reached over its seeds, when, and with what logits; and how it was made."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.records import Data
from longshort.report.thinning import thin
from longshort.runs import METRICS, Run, RunError, load_run
from longshort.stability import SpikeGuard

AFTER, COMMANDS, STEP_TIMES = "after.json", "commands.json", "step_times.json"
DIVERGED = 0.5
"""A run diverged if its record says so, or its last validation loss is not finite or this many nats above its best."""
CURVE_POINTS = 150

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run and what was written after it."""

    run: Run
    after: dict[str, Any]

    @property
    def variant(self) -> str:
        return self.run.variant

    @property
    def diverged(self) -> bool:
        last, best = self.run.final_loss, self.run.best_loss
        lost = last is None or best is None or not last <= best + DIVERGED
        return lost or self.run.status == "diverged"

    @property
    def spikes(self) -> int:
        """Counted over the whole log where the run ended, else over what is there."""
        found = self.after.get("spikes")
        if found is None:
            found = len(self.run.spikes) or count_spikes(self.run.train["loss"].tolist())
        return int(found)

    @property
    def largest_logit(self) -> float | None:
        """Over the whole log where the run ended, else over the readings that are there."""
        found = self.after.get("largest_logit")
        return self.run.largest_logit if found is None else float(found)

    @property
    def accuracy(self) -> float | None:
        """Over the whole test split where the run ended, else over the sequences of the last evaluation."""
        found = self.after.get("test", {}).get("accuracy")
        return self.run.final_accuracy if found is None else float(found)


def outcomes(folder: Path) -> list[Outcome]:
    """Every evaluated run in the folder, by seed; a run that was stopped before its first evaluation is left out."""
    found = []
    for path in sorted(folder.glob(f"*/{METRICS}")):
        if not path.read_bytes().count(b"\n"):  # stopped before its header was written
            continue
        run = load_run(path.parent)
        if run.evaluations:
            found.append(Outcome(run=run, after=_after(run)))
    if not found:
        raise RunError(f"{folder}: holds no evaluated run yet; train first, or unpack results into it")
    _check_each_is_one(found)
    return sorted(found, key=lambda outcome: outcome.run.seed)


def _check_each_is_one(found: Iterable[Outcome]) -> None:
    """Raise if two runs are the same variant with the same seed, as a copy is: they would count as two seeds."""
    seen: dict[tuple[str, int], Path] = {}
    for outcome in found:
        first = seen.setdefault((outcome.variant, outcome.run.seed), outcome.run.path)
        if first != outcome.run.path:
            raise RunError(
                f"{first} and {outcome.run.path}: both are {outcome.variant} with seed {outcome.run.seed}; move one "
                "out of the folder"
            )


def _after(run: Run) -> dict[str, Any]:
    """What was written after the run, unless it has been resumed since."""
    path = run.path / AFTER
    found: dict[str, Any] = read_json(path) if path.is_file() else {}
    return found if found.get("step", run.last_step) == run.last_step else {}


def by_variant(found: Iterable[Outcome], order: Sequence[str]) -> dict[str, list[Outcome]]:
    """The runs of each variant, in this order; variants that it does not name go last."""
    variants: dict[str, list[Outcome]] = {name: [] for name in order}
    for outcome in found:
        variants.setdefault(outcome.variant, []).append(outcome)
    return {name: runs for name, runs in variants.items() if runs}


def loss_row(variant: str, runs: Sequence[Outcome]) -> Row:
    """What a variant reached: means over its seeds; None stands for a value that is not finite."""
    finals = [outcome.run.final_loss for outcome in runs]
    bests = [outcome.run.best_loss for outcome in runs]
    peaks = [outcome.largest_logit for outcome in runs]
    loss = _mean(finals)
    return {
        "variant": variant,
        "seeds": [outcome.run.seed for outcome in runs],
        "steps": [outcome.run.last_step for outcome in runs],
        "final_loss": loss,
        "final_losses": [None if value is None else _finite(value) for value in finals],
        "spread": None if loss is None else max(f for f in finals if f is not None) - min(f or 0.0 for f in finals),
        "final_perplexity": perplexity(loss),
        "best_perplexity": perplexity(_mean(bests)),
        "max_logit": max((p for p in peaks if p is not None and math.isfinite(p)), default=None),
        "max_logits": [
            _finite(p or math.nan) if o.run.logits_are_finite else None for o, p in zip(runs, peaks, strict=True)
        ],
        "logits_lost": sum(not outcome.run.logits_are_finite for outcome in runs),
        "diverged": sum(outcome.diverged for outcome in runs),
        "spikes": sum(outcome.spikes for outcome in runs),
    }


def accuracy_row(variant: str, runs: Sequence[Outcome]) -> Row:
    """What a variant reached on a task: means over its seeds; None where it was not measured."""
    shares = [share for outcome in runs if (share := outcome.accuracy) is not None]
    losses = [loss for outcome in runs if (loss := outcome.run.final_loss) is not None]
    peaks = [peak for outcome in runs if (peak := outcome.largest_logit) is not None]
    exact = [outcome.after["test"]["exact"] for outcome in runs if "exact" in outcome.after.get("test", {})]
    return {
        "variant": variant,
        "seeds": [outcome.run.seed for outcome in runs],
        "steps": [outcome.run.last_step for outcome in runs],
        "accuracy": statistics.fmean(shares) if shares else None,
        "accuracies": shares,
        "exact": statistics.fmean(exact) if exact else None,
        "validation_loss": _mean(losses),
        "max_logit": max((peak for peak in peaks if math.isfinite(peak)), default=None),
        "diverged": sum(outcome.diverged for outcome in runs),
    }


def curve(outcome: Outcome) -> Row:
    """Thinned curves of one run: validation loss and largest |logit| of all heads; and the last |logit| per head."""
    run = outcome.run
    peaks = run.logits_NLH.reshape(len(run.logit_steps), -1).max(1) if len(run.logit_steps) else np.zeros(0)
    kept = thin(peaks, CURVE_POINTS)
    return {
        "variant": outcome.variant,
        "seed": run.seed,
        "validation": [[e.step, _digits(e.loss)] for e in run.evaluations],
        "logits": [[int(run.logit_steps[i]), _digits(peaks[i])] for i in kept],
        "last_logits": [[_digits(v) for v in heads] for heads in run.logits_NLH[-1]] if len(peaks) else [],
    }


def data_of(
    found: Sequence[Outcome],
    folder: Path,
    order: Sequence[str] = (),
    *,
    row: Callable[[str, Sequence[Outcome]], Row] = loss_row,
    parts: Callable[[str, Sequence[Outcome]], Row] = lambda variant, runs: {},
    curve: Callable[[Outcome], Row] | None = curve,
) -> Data:
    """The data of a sweep: a row per variant, with what `parts` adds to it, and a curve per run."""
    grouped = by_variant(found, order)
    data: Data = {
        "provenance": provenance(found, folder),
        "rows": [row(name, runs) | parts(name, runs) for name, runs in grouped.items()],
    }
    if curve is not None:
        data["curves"] = [curve(outcome) for runs in grouped.values() for outcome in runs]
    return data


def provenance(found: Sequence[Outcome], folder: Path) -> dict[str, Any]:
    """How, when and on what the numbers were made."""
    runs = [outcome.run for outcome in found]
    configs = [run.config for run in runs]
    return {
        "commands": commands(folder),
        "device": sorted({run.header.device for run in runs}),
        "versions": [dict(v) for v in sorted({tuple(sorted(run.header.versions.items())) for run in runs})],
        "git": sorted({run.header.git or "unknown" for run in runs}),
        "started": min(run.header.started for run in runs),
        "seeds": sorted({run.seed for run in runs}),
        "steps": sorted({run.last_step for run in runs}),
        "run_seconds": round(sum(float(run.train["seconds"].max(initial=0.0)) for run in runs), 1),
        "unfinished": [run.name for run in runs if run.status not in ("finished", "diverged")],
        "batch_sizes": sorted({config["data"]["batch_size"] for config in configs}),
        "backends": sorted({config["model"]["backend"] for config in configs}),
        **_vocabularies(found),
    }


def _vocabularies(found: Sequence[Outcome]) -> dict[str, dict[str, str]]:
    """Of the text that each seed stands for, where that is known: variants are compared seed by seed."""
    known: dict[str, dict[str, str]] = {"vocabulary": {}, "text": {}}
    for outcome in found:
        seed, texts = str(outcome.run.seed), outcome.run.header.texts or {}
        for what, own in (("vocabulary", outcome.after.get("vocabulary")), ("text", texts.get("train"))):
            if own is not None and known[what].setdefault(seed, own) != own:
                raise RunError(
                    f"{outcome.run.path}: seed {seed} has another text here than in other runs of the folder ({what} "
                    f"{own}, got {known[what][seed]} too), and variants are compared seed by seed; move one of the two "
                    "out of the folder"
                )
    return {"vocabularies_by_seed": known["vocabulary"]} if known["vocabulary"] else {}


def commands(folder: Path) -> list[dict[str, str]]:
    """How the results in this folder were made, call by call."""
    found: list[dict[str, str]] = read_json(folder / COMMANDS) if (folder / COMMANDS).is_file() else []
    return found


def results_in(folder: Path, file: str, name: str) -> Any:
    """What the measurement `name` wrote into its folder."""
    if not (folder / file).is_file():
        raise RunError(f"{folder}: holds no {file}; run `python -m experiments {name}` first")
    return read_json(folder / file)


def step_seconds(folder: Path) -> dict[str, float]:
    """Seconds per step of each variant alone on the device, as `--time-steps` wrote them."""
    path = folder / STEP_TIMES
    return {variant: entry["seconds"] for variant, entry in read_json(path).items()} if path.is_file() else {}


def count_spikes(losses: Iterable[float | None]) -> int:
    """Steps that the spike guard, at its default settings, would have called a spike."""
    guard = SpikeGuard()
    return sum(guard.judge(math.nan if loss is None else loss).spike for loss in losses)


def perplexity(loss: float | None) -> float | None:
    """exp of a mean loss, capped, since a diverged run's would overflow; None stands for one that is not finite."""
    return None if loss is None else math.exp(min(loss, 700.0))


def last_logits(data: Data) -> dict[str, list[float]]:
    """The largest |logit| of all heads at the last step with a reading, by variant and seed, where it is finite."""
    found: dict[str, list[float]] = {}
    for run in data.get("curves", ()):
        heads = [value for layer in run.get("last_logits", ()) for value in layer if value is not None]
        if heads:
            found.setdefault(run["variant"], []).append(max(heads))
    return found


def gaps(data: Data, mine: str, theirs: str) -> dict[int, float]:
    """By how many nats the validation loss of the second variant is above the first's, step by step: the mean over the
    seeds that both have, at the steps where all of them were evaluated.
    """
    losses: dict[str, dict[int, dict[int, float]]] = {mine: {}, theirs: {}}
    for run in data.get("curves", ()):
        if run["variant"] in losses:
            finite = {step: loss for step, loss in run["validation"] if loss is not None}
            losses[run["variant"]][run["seed"]] = finite
    seeds = losses[mine].keys() & losses[theirs].keys()
    runs = [run[seed] for run in losses.values() for seed in seeds]
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return {step: statistics.fmean(losses[theirs][s][step] - losses[mine][s][step] for s in seeds) for step in steps}


def by_name(data: Data) -> dict[str, Row]:
    """The rows of the data by the name of the variant."""
    return {row["variant"]: row for row in data["rows"]}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [v for v in values if v is not None and math.isfinite(v)]
    return sum(measured) / len(measured) if measured and len(measured) == len(values) else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
