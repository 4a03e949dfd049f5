"""What `run.deterministic=true` gives and costs: whether two training runs are equal to the bit, and how fast they are.

The runs are those of `longshort train`, with paper-6m on the standard library's text as bytes; runs with and without
the setting take turns. Speeds are medians over the steps of a run, without the first tenth.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.harness import Recorder
from benchmarks.pages import Page, Results, markdown
from longshort.runs import load_run
from longshort.train import TrainConfig, train
from longshort.train.checkpoints.checkpoint import load_checkpoint

WAYS: dict[str, Sequence[str]] = {
    "eager": ("run.compile=false",),
    "compiled": ("run.compile=true", "run.cuda_graphs=false"),
    "compiled, CUDA graphs": ("run.compile=true", "run.cuda_graphs=true"),
}


def run(
    record: Recorder, *, device: str = "cuda", steps: int = 150, rounds: int = 2, overrides: Sequence[str] = ()
) -> Results:
    """Every way to run a step, with and without the setting, `rounds` times each; on a CPU only the eager way."""
    record.begin(PAGE, device, steps=steps, rounds=rounds)
    base = TrainConfig.from_dict({"model": {"preset": "paper-6m", "vocab_size": 257}, "run": {"device": device}})
    base = base.with_overrides([f"run.steps={steps}", "run.eval_every=0", "run.save_every=0", *overrides])
    for way, changes in WAYS.items():
        if device == "cuda" or way == "eager":
            record.piece("rows", way, partial(measured, way, base.with_overrides(changes), rounds))
    return record.end()


def measured(way: str, config: TrainConfig, rounds: int) -> list[dict[str, Any]]:
    """One row: the speeds of all runs and whether they are equal, with and without the setting."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    ends: dict[bool, list[tuple[list[float], dict[str, Tensor]]]] = {False: [], True: []}
    for wanted in (False, True) * rounds:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            train(config.with_overrides([f"run.out={out}", f"run.deterministic={wanted}".lower()]))
            record, checkpoint = load_run(out), load_checkpoint(out)
        rates = record.train["tokens_per_second"].tolist()
        speeds[wanted].append(statistics.median(rates[len(rates) // 10 :]))
        ends[wanted].append((record.train["loss"].tolist(), checkpoint.model | checkpoint.trainer))
    row: dict[str, Any] = {"way": way}
    for name, wanted in (("free", False), ("deterministic", True)):
        row[name] = {"tokens_per_second": speeds[wanted], "equal": _are_equal(ends[wanted])}
    return [row | {"ratio": statistics.median(speeds[True]) / statistics.median(speeds[False])}]


def _are_equal(ends: Sequence[tuple[list[float], dict[str, Tensor]]]) -> bool:
    losses, tensors = ends[0]
    return all(
        other_losses == losses and all(tensors[name].equal(tensor) for name, tensor in other.items())
        for other_losses, other in ends[1:]
    )


def table(results: Results) -> str:
    """One line per way."""
    said = {True: "yes", False: "no"}
    lines = [
        (
            row["way"],
            *(said[row[name]["equal"]] for name in ("free", "deterministic")),
            *(f"{statistics.median(row[name]['tokens_per_second']):,.0f}" for name in ("free", "deterministic")),
            f"{row['ratio']:.2f}",
        )
        for row in results["rows"]
    ]
    header = ("steps are", "equal without", "equal with", "tokens/s without", "tokens/s with", "ratio")
    return markdown(header, lines)


PAGE = Page(
    name="deterministic",
    title="Runs that are equal to the bit",
    command="python -m benchmarks training --deterministic --out benchmarks/results/deterministic.json",
    about=lambda results: f"paper-6m, {results['steps']} steps, {results['rounds']} runs of each kind in turns.",
    tables=table,
)
