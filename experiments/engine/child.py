"""The process of one run: train, then examine the model while it is there, since packs carry no weights.

`python -m experiments.engine.child RUN/config.json` writes `RUN/after.json` beside the metrics. The configuration alone
defines what is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.engine.anatomy import anatomy
from experiments.engine.measures import AFTER, count_spikes
from longshort.files import write_json
from longshort.runs.log import largest_logit, read_log
from longshort.train import TrainConfig, TrainingStopped, load_model, train
from longshort.train.evaluation.checkpoint_scores import evaluate_task
from longshort.train.machine.distributed import choose_device
from longshort.train.machine.precision import autocast
from longshort.train.sweeps.processes import named_config
from longshort.train.text import TextData

ROWS = 2
"""Sequences of the validation split whose attention is examined."""
Look = Callable[[TrainConfig, Path], dict[str, Any]]


def train_and_look(config: TrainConfig, *, also: Look = lambda config, out: {}) -> None:
    """Train one variant; if training finishes, write what is found in the model, and what `also` finds."""
    try:
        result = train(config)
    except TrainingStopped as stopped:  # divergence is a result, but its model is not examined
        print(stopped)
        write_json(Path(config.run.out) / AFTER, look_into_log(Path(config.run.out)))
        return
    if result.status == "finished":
        found = look(config, result.out) | also(config, result.out)
        write_json(result.out / AFTER, {"step": result.step} | found)


def look_into_log(out: Path) -> dict[str, Any]:
    """Spikes and the largest |logit| of the whole log, before it is thinned for packing."""
    records = read_log(out)
    steps = [record for record in records if record["kind"] == "train"]
    peaks = [peak for record in steps if (peak := largest_logit(record)) is not None]
    found: dict[str, Any] = {"largest_logit": max(peaks, default=None)}
    recorded = sum(record["kind"] == "spike" for record in records)  # by a guard, which may have skipped those steps
    return found | {"spikes": recorded or count_spikes(record["loss"] for record in steps)}


def look(config: TrainConfig, out: Path) -> dict[str, Any]:
    """What the log says, and the anatomy of the newest checkpoint's attention or, with a task, its test scores."""
    device, found = choose_device(config.run.device), look_into_log(out)
    if config.task.name is not None:
        return found | {"test": evaluate_task(out, split="test", device=device)}
    model, _ = load_model(out, device)
    text = TextData.open(config)
    found["vocabulary"] = text.fingerprint
    if any(layer.sink != "none" for layer in model.config.layer_reaches):
        return found  # their weight is neither near nor far
    with autocast(config.run.precision, device):
        found["anatomy"] = anatomy(model, text.stream("validation", seed=0).batch(0).tokens[:ROWS].to(device))
    return found


if __name__ == "__main__":
    train_and_look(named_config())
