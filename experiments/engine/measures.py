"""The numbers of runs as the recipes need them: what each arm reached over its seeds, when, and with what logits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine import published
from longshort.report.thinning import thin
from longshort.runs import METRICS, Run, RunError, load_run
from longshort.stability import SpikeGuard

AFTER, STEP_TIMES = "after.json", "step_times.json"
DIVERGED = 0.5
"""A run diverged if its last validation loss is not finite, or so many nats above its best."""
CURVE_POINTS = 150


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run and what was written after it."""

    arm: str
    run: Run
    after: dict[str, Any]

    @property
    def diverged(self) -> bool:
        last, best = self.run.final_loss, self.run.best_loss
        return last is None or best is None or not last <= best + DIVERGED

    @property
    def spikes(self) -> int:
        """Counted over the whole log where the run came to its end, else over what is there."""
        found = self.after.get("spikes")
        if found is None:
            found = len(self.run.spikes) or count_spikes(self.run.train["loss"].tolist())
        return int(found)

    @property
    def largest_logit(self) -> float | None:
        """Over the whole log where the run came to its end, else over the readings that are there."""
        found = self.after.get("largest_logit")
        return self.run.largest_logit if found is None else float(found)


def outcomes(folder: Path) -> list[Outcome]:
    """Every run in the folder that was evaluated, by arm and seed; one that was stopped before says nothing yet."""
    found = []
    for path in sorted(folder.glob(f"*/{METRICS}")):
        if not path.read_bytes().count(b"\n"):  # stopped before it could say what it is
            continue
        run = load_run(path.parent)
        if run.evaluations:
            found.append(Outcome(arm=run.variant, run=run, after=_after(run)))
    if not found:
        raise RunError(f"{folder}: holds no evaluated run yet; train first, or unpack results there")
    return sorted(found, key=lambda outcome: outcome.run.seed)


def _after(run: Run) -> dict[str, Any]:
    """What was written after the run, unless it has gone on since."""
    path = run.path / AFTER
    found: dict[str, Any] = read_json(path) if path.is_file() else {}
    return found if found.get("step", run.last_step) == run.last_step else {}


def by_arm(found: Iterable[Outcome], order: Sequence[str]) -> dict[str, list[Outcome]]:
    """The runs of each arm, arms in the order of the recipe; one it does not know goes last."""
    arms: dict[str, list[Outcome]] = {name: [] for name in order}
    for outcome in found:
        arms.setdefault(outcome.arm, []).append(outcome)
    return {name: runs for name, runs in arms.items() if runs}


def row(arm: str, runs: Sequence[Outcome]) -> dict[str, Any]:
    """What an arm reached: means over its seeds; None is not finite."""
    finals = [outcome.run.final_loss for outcome in runs]
    bests = [outcome.run.best_loss for outcome in runs]
    peaks = [outcome.largest_logit for outcome in runs]
    loss = _mean(finals)
    return {
        "arm": arm,
        "seeds": [outcome.run.seed for outcome in runs],
        "steps": [outcome.run.last_step for outcome in runs],
        "final_loss": loss,
        "spread": None if loss is None else max(f for f in finals if f is not None) - min(f or 0.0 for f in finals),
        "final_perplexity": perplexity(loss),
        "best_perplexity": perplexity(_mean(bests)),
        "max_logit": max((p for p in peaks if p is not None and math.isfinite(p)), default=None),
        "logits_lost": sum(not outcome.run.logits_are_finite for outcome in runs),
        "diverged": sum(outcome.diverged for outcome in runs),
        "spikes": sum(outcome.spikes for outcome in runs),
        "shared_tokens_per_second": _finite(runs[0].run.speed or math.nan),
    }


def curves(arm: str, outcome: Outcome) -> dict[str, Any]:
    """Thinned curves of one run: validation, and the largest |logit| of all heads; the last of each head."""
    run = outcome.run
    peaks = run.logits_NLH.reshape(len(run.logit_steps), -1).max(1) if len(run.logit_steps) else np.zeros(0)
    kept = thin(peaks, CURVE_POINTS)
    return {
        "arm": arm,
        "seed": run.seed,
        "validation": [[e.step, _digits(e.loss)] for e in run.evaluations],
        "logits": [[int(run.logit_steps[i]), _digits(peaks[i])] for i in kept],
        "last_logits": [[_digits(v) for v in heads] for heads in run.logits_NLH[-1]] if len(peaks) else [],
    }


def count_spikes(losses: Iterable[float | None]) -> int:
    """Steps that the spike guard, at its default settings, would have called a spike."""
    guard = SpikeGuard()
    return sum(guard.judge(math.nan if loss is None else loss).spike for loss in losses)


def step_seconds(folder: Path) -> dict[str, float]:
    """Seconds of a step of each arm alone on the device, as `--time-steps` wrote them."""
    path = folder / STEP_TIMES
    return {arm: entry["seconds"] for arm, entry in read_json(path).items()} if path.is_file() else {}


def loss_by(run: Run, step: float) -> float | None:
    """Validation loss at the last evaluation up to `step`."""
    seen = [e.loss for e in run.evaluations if e.step <= step]
    return _finite(seen[-1]) if seen else None


def steps_to(run: Run, loss: float) -> int | None:
    """The first evaluated step with a validation loss of at most `loss`."""
    return next((e.step for e in run.evaluations if e.loss <= loss), None)


def provenance(found: Sequence[Outcome], folder: Path) -> dict[str, Any]:
    """What a reader needs to place the numbers."""
    runs = [outcome.run for outcome in found]
    commands = folder / "commands.json"
    configs = [run.config for run in runs]
    made = {
        "commands": read_json(commands) if commands.is_file() else [],
        "device": sorted({run.header.device for run in runs}),
        "versions": [dict(v) for v in sorted({tuple(sorted(run.header.versions.items())) for run in runs})],
        "git": sorted({run.header.git or "unknown" for run in runs}),
        "started": min(run.header.started for run in runs),
        "seeds": sorted({run.seed for run in runs}),
        "steps": sorted({run.last_step for run in runs}),
        "run_seconds": round(sum(float(run.train["seconds"].max(initial=0.0)) for run in runs), 1),
        "unfinished": [run.name for run in runs if run.status != "finished"],
        "batch_sizes": sorted({config["data"]["batch_size"] for config in configs}),
        "backends": sorted({config["model"]["backend"] for config in configs}),
    }
    return published.with_earlier_provenance(made, folder)


def shown(value: float | None, digits: int = 4) -> str:
    """A number for a table; None is one that is not finite."""
    return "not finite" if value is None else f"{value:,.{digits}g}" if abs(value) < 1e5 else f"{value:.2e}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first column is text, the others are numbers."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" + "---:|" * (len(header) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in cells)} |" for cells in rows)]) + "\n"


def standard_table(rows: Iterable[dict[str, Any]]) -> str:
    """The table that most recipes show."""
    header = ("arm", "seeds", "steps", "final perplexity", "spread (loss)", "best perplexity", "max abs logit")
    return markdown(
        (*header, "diverged", "spikes"),
        [
            (
                r["arm"],
                len(r["seeds"]),
                _span(r["steps"]),
                shown(r["final_perplexity"]),
                shown(r["spread"], 2) if len(r["seeds"]) > 1 else "",
                shown(r["best_perplexity"]),
                shown(r["max_logit"], 3) + (" and not finite" if r["logits_lost"] else ""),
                r["diverged"],
                r["spikes"],
            )
            for r in rows
        ],
    )


def _span(steps: Sequence[int]) -> str:
    return str(max(steps)) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [v for v in values if v is not None and math.isfinite(v)]
    return sum(measured) / len(measured) if measured and len(measured) == len(values) else None


def perplexity(loss: float | None) -> float | None:
    """exp of a mean loss, which a diverged run's would overflow; None is one that is not finite."""
    return None if loss is None else math.exp(min(loss, 700.0))


def equal_steps(*rows: dict[str, Any]) -> bool:
    """Did all runs of these arms take equally many steps?"""
    return len({step for row in rows for step in row["steps"]}) <= 1


def peak(row: dict[str, Any]) -> float:
    """The largest |logit| of an arm, for a verdict: what is not finite is larger than anything."""
    return math.inf if row["logits_lost"] or row["max_logit"] is None else float(row["max_logit"])


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _digits(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
