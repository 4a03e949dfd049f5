"""How fast should LaS attention decay, and how wide should it pool?

LaS attention (arXiv 2311.16620) has two settings: the largest decay B and the width P of the pooling. The results of
the paper's own sweep are unknown to us; this is one on ListOps and on pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import long_range
from experiments.classifiers import BASE, POINT, QUICK_BASE, decayed, on_task, smoothed
from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import paired, verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import percent
from longshort.train import TrainConfig

DECAYS, WIDTHS = (0.0001, 0.001, 0.01, 0.1), (1, 3, 5, 9)
CELLS = tuple((decay, width) for decay in DECAYS for width in WIDTHS)
TASKS: dict[str, dict[str, Any]] = {
    "listops": {**long_range.GENERATED["listops"], "test": 10_000},
    "pathfinder": {**long_range.GENERATED["pathfinder"], "test": 10_000},
    "image": {},
    "smnist": {},
}
"""With 10,000 test sequences the standard error of an accuracy is at most half a point."""
REPORTED = {"listops": (0.001, 5), "pathfinder": (0.001, 5), "image": (0.001, 3), "smnist": (0.001, 5)}
LEAST_SPREAD = 2 * POINT
"""The least spread of a task's accuracies for it to decide anything: cells all alike, as at chance, have no best."""


def named(task: str, decay: float, width: int) -> str:
    """The name of a variant.

    >>> named("listops", 0.001, 5)
    'listops-b0.001-p5'
    """
    return f"{task}-b{decay:g}-p{width}"


NAMES = {named(task, *cell): (task, *cell) for task in TASKS for cell in CELLS}


def variants(base: TrainConfig) -> Variants:
    """Every cell on ListOps and on pixels: those of CIFAR-10 and MNIST where `--data` names their folder, else
    Pathfinder's.
    """
    tasks = ("listops", *(("image", "smnist") if base.task.path else ("pathfinder",)))
    return {
        named(task, decay, width): smoothed(decayed(on_task(base, task, TASKS[task]), decay), width)
        for task in tasks
        for decay, width in CELLS
    }


def collect(folder: Path) -> Data:
    """The accuracy of every cell."""
    found = measures.outcomes(folder)
    return measures.data_of(found, folder, tuple(NAMES), row=measures.accuracy_row, parts=_parts, curve=None)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    task, decay, width = NAMES[variant]
    return {"task": task, "decay": decay, "width": width}


def grids(data: Data) -> dict[str, dict[tuple[float, int], float]]:
    """Accuracies by task and cell, where they were measured."""
    found: dict[str, dict[tuple[float, int], float]] = {}
    for row in data["rows"]:
        if row["accuracy"] is not None:
            found.setdefault(row["task"], {})[row["decay"], row["width"]] = row["accuracy"]
    return found


def table(data: Data) -> str:
    parts = []
    for task, cells in grids(data).items():
        rows = [row for row in data["rows"] if row["task"] == task]
        seeds = {d: tables.span([len(r["seeds"]) for r in rows if r["decay"] == d]) for d in {r["decay"] for r in rows}}
        lines = [
            (f"B {decay:g}", seeds[decay], *(percent(cells.get((decay, width))) for width in WIDTHS))
            for decay in DECAYS
            if any((decay, width) in cells for width in WIDTHS)
        ]
        parts.append(tables.markdown((task, "seeds", *(f"P {width}" for width in WIDTHS)), lines))
    return "\n".join(parts)


def reported(data: Data) -> Finding | None:
    shares = {
        (row["task"], row["decay"], row["width"]): comparison.accuracies_by_seed(row)
        for row in data["rows"]
        if row["accuracy"] is not None
    }
    behind = {}
    for task, cells in grids(data).items():
        if len(cells) == len(CELLS) and max(cells.values()) - min(cells.values()) >= LEAST_SPREAD:
            best = max(cells, key=lambda cell: cells[cell])
            found = paired(shares[task, *best], shares[task, *REPORTED[task]])
            if found is not None:
                behind[task] = found
    if not behind:
        return None
    ours = ", ".join(f"{task}: {100 * gap.mean:.1f} points below the best" for task, gap in behind.items())
    verdict = verdict_of([gap.is_at_most(POINT) for gap in behind.values()])
    compared = [row for row in data["rows"] if row["task"] in behind]
    seeds = (*comparison.seeds_of(*compared), *(gap.seeds for gap in behind.values()))
    return Finding(ours=ours, verdict=verdict, seeds=seeds)


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    charts = []
    for task in dict.fromkeys(row["task"] for row in data["rows"]):
        cells = [row | {"decay": f"{row['decay']:g}"} for row in data["rows"] if row["task"] == task]
        axes: dict[str, Any] = {"x": "width", "x_title": "width P", "y": "decay", "y_title": "largest decay B"}
        value: dict[str, Any] = {"value": "accuracy", "value_title": "test accuracy", "text": ".1%", "log": False}
        charts.append(figures.heat(cells, title=task, **axes, **value))
    return drawing().hconcat(*charts).resolve_scale(color="independent")


EXPERIMENT = Experiment(
    name="las-sweep",
    question="How fast should LaS attention decay, and how wide should it pool?",
    method=(
        "The classifier of `long-range`, with LaS attention at largest decays B from 0.0001 to 0.1 and widths P of the "
        "centred pooling from 1 (none) to 9. The tasks are ListOps (arXiv 2011.04006) in sequences of 128 to "
        "512 tokens and Pathfinder, drawn by our code with 9 dashes; with `--data`, CIFAR-10 and MNIST by pixels "
        "replace Pathfinder. There are 10,000 test sequences. Chance flatters the best of 16 cells somewhat, and more "
        "than somewhat on ListOps ([repeats](listops-repeats.json)). `--variants '*-b0.001-*'` chooses a row of the "
        "grid."
    ),
    cost="H200: about 10 minutes per seed, five at a time; CPU --quick: some minutes",
    caption="Test accuracy by the largest decay B and the width P of the pooling, with one panel per task; one seed.",
    claims={
        "reported": Claim(
            text="B 0.001 with P 5 (P 3 for CIFAR-10's pixels) is a good choice for LaS attention",
            paper="probable settings of LaS (arXiv 2311.16620); its own sweep is unknown to us",
            rule="test accuracy at most a point below the best of the 16 cells (the whole paired interval): holds if "
            f"on every task, partly if on one; a task whose cells differ by less than {100 * LEAST_SPREAD:.0f} points "
            "decides nothing",
            judge=reported,
        ),
    },
    collect=collect,
    table=table,
    more=lambda data: tables.accuracies(data["rows"]),
    figure=figure,
    variants=variants,
    base=BASE,
    quick_base=QUICK_BASE,
    steps=3000,
)
