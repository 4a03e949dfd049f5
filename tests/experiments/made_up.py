"""Folders as a finished sweep leaves them, with made-up curves: plain variants explode, the others do not."""

import json
from pathlib import Path

from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep

from ..report.synthetic import realistic


def planned(experiment, folder: Path, **options):
    """The configurations of a sweep by the name of the variant."""
    trials = plan_sweep(experiment, Options(out=folder, device="cpu", **options), data=None)
    return {trial.variant: trial.config for trial in trials}


def made_up_sweep(experiment, folder: Path, *, seeds=(0,), variants=None, steps=120) -> Path:
    """Every variant of the experiment with its configuration, metrics and what was written after."""
    options = Options(out=folder, seeds=seeds, variants=variants, device="cpu")
    for trial in plan_sweep(experiment, options, data=None):
        model = trial.config.model
        explode = trial.variant.startswith(("plain", "g6"))
        heads = {"layers": model.n_layers, "heads": model.n_heads}
        realistic(trial.out, trial.variant, trial.seed, steps=steps, explode=explode, **heads)
        path = trial.out / "metrics.jsonl"
        lines = path.read_text().splitlines()
        head = json.loads(lines[0]) | {"config": trial.config.to_dict()}
        head["plans"] = [list(plan.windows) for plan in model.layer_plans]
        path.write_text("\n".join([json.dumps(head), *lines[1:]]) + "\n")
        found = after(model.n_layers, model.n_heads)
        if trial.config.task.name is not None:  # more global heads, more right answers
            share = 0.5 + 0.05 * sum(w is None for w in model.layer_plans[0].windows)
            found["test"] = {"loss": 1.0, "accuracy": share, "examples": 100}
        (trial.out / "after.json").write_text(json.dumps(found))
    return folder


def after(layers, heads):
    names = ("logit", "near_mass", "far_keys", "far_noticed", "logit_rank", "attention_rank")
    values = {name: [[0.5] * heads for _ in range(layers)] for name in names}
    return {"anatomy": {"near": 50, "rows": 2, "positions": 2048, **values}, "spikes": 3}


def rewrite(folder: Path, change) -> None:
    """Every record of the run's log, as `change` leaves it."""
    path = folder / "metrics.jsonl"
    records = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))
