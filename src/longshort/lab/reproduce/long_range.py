"""Long Range Arena's tasks: arms that are identical but for the attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longshort.heads import HeadPlan
from longshort.lab.reproduce import accuracy, figures, measures
from longshort.lab.reproduce.recipe import Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.lab.variants import with_plan
from longshort.train import TrainConfig
from longshort.train.config import TaskConfig

MAX_DECAY = 0.001
"""B of LaS attention as reported."""
N_GLOBAL, WINDOW = 2, 64
SMOOTHED = 5
"""P of LaS attention as reported for ListOps."""
POINT = 0.01
"""A difference of accuracies below one point decides nothing."""


def _positions(name: str) -> Callable[[TrainConfig], TrainConfig]:
    return lambda config: replace(config, model=replace(config.model, positions=name))


def _decay(config: TrainConfig) -> TrainConfig:
    return with_plan(config, HeadPlan.las(config.model.n_heads, MAX_DECAY))


def _windows(config: TrainConfig) -> TrainConfig:
    return with_plan(config, HeadPlan.long_short(config.model.n_heads, N_GLOBAL, min(WINDOW, config.length // 4)))


def _smoothed(config: TrainConfig) -> TrainConfig:
    """Centred, since the classifier's attention is two-sided."""
    return replace(config, model=replace(config.model, smoothing=SMOOTHED, smoothing_side="centred"))


def _causal_las(config: TrainConfig) -> TrainConfig:
    config = replace(_decay(config), task=replace(config.task, causal=True))
    return replace(config, model=replace(config.model, smoothing=SMOOTHED))


KINDS: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "none": lambda config: config,
    "sinusoidal": _positions("sinusoidal"),
    "rotary": _positions("rotary"),
    "alibi": _positions("alibi"),
    "decay": _decay,
    "ls": _windows,
    "ls-rotary": lambda config: _windows(_positions("rotary")(config)),
    "smoothing": _smoothed,
    "las": lambda config: _smoothed(_decay(config)),
    "las-causal": _causal_las,
    "ls-smooth": lambda config: _smoothed(_windows(config)),
}
"""What differs between arms; none has plain heads without positions."""
GENERATED: dict[str, dict[str, Any]] = {
    "listops": {},
    "pathfinder": {"paddles": 9, "train": 40_000, "validation": 2_000, "test": 4_000},
}
READ: dict[str, dict[str, Any]] = {"text": {"length": 2048}, "image": {}, "smnist": {}}
"""Settings that differ from the published ones, so that a run takes minutes."""
NAMES = tuple(f"{task}-{kind}" for task in (*GENERATED, *READ) for kind in KINDS)
_SIZES = ("length", "train", "validation", "test")

BASE: dict[str, dict[str, Any]] = {
    **accuracy.SECTIONS,
    "task": {"name": "listops"},
    "model": {
        "vocab_size": 257,
        "context": 4000,
        "n_layers": 6,
        "width": 256,
        "n_heads": 8,
        "ff_multiplier": 2,
        "positions": "none",
    },
    "data": {"batch_size": 32},
}
QUICK_BASE: dict[str, dict[str, Any]] = {
    **BASE,
    **accuracy.QUICK_SECTIONS,
    "task": {"name": "listops", "length": 48, "train": 64, "validation": 16, "test": 16},
    "model": {**BASE["model"], "n_layers": 1, "width": 32, "n_heads": 4},
}


def arms(base: TrainConfig) -> Arms:
    """Every task with every kind of attention.

    The tasks that are read come in where `--data` names the folder of their files. Sizes given for the base, such as
    task.length=512 task.train=10000, ask about ListOps at those sizes alone: gain against length and amount of data.
    """
    sizes = {name: value for name in _SIZES if (value := getattr(base.task, name)) is not None}
    tasks = {"listops": sizes} if sizes else {**GENERATED, **(READ if base.task.path else {})}
    shared: dict[str, Any] = {"seed": base.task.seed, "causal": base.task.causal, "norm": base.task.norm}
    found: Arms = {}
    for name, settings in tasks.items():
        path: dict[str, Any] = {"path": base.task.path} if name in READ else {}
        config = replace(base, task=TaskConfig(name=name, **settings, **shared, **path))
        found |= {f"{name}-{kind}": change(config) for kind, change in KINDS.items()}
    return found


def summarise(folder: Path) -> Summary:
    """Accuracy of every kind of attention, task by task."""
    found = measures.outcomes(folder)
    grouped = measures.by_arm(found, NAMES)
    rows = [accuracy.row(name, runs) | _parts(name) for name, runs in grouped.items()]
    data = {"provenance": measures.provenance(found, folder), "rows": rows}
    by_task = _by_task(rows)
    return Summary(data=data, table=accuracy.table(rows), sentences=_sentences(by_task), findings=_findings(by_task))


def _parts(arm: str) -> dict[str, str]:
    task, _, kind = arm.partition("-")
    return {"task": task, "kind": kind}


def _by_task(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Accuracies by task and kind, of what was measured."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["accuracy"] is not None:
            found.setdefault(row["task"], {})[row["kind"]] = row["accuracy"]
    return found


def _sentences(by_task: dict[str, dict[str, float]]) -> tuple[str, ...]:
    said = []
    for task, kinds in by_task.items():
        ranked = sorted(kinds, key=lambda kind: -kinds[kind])
        listed = ", ".join(f"{kind} {accuracy.percent(kinds[kind])}" for kind in ranked)
        said.append(f"{task}: {listed}.")
    return tuple(said) or ("No accuracy was measured yet.",)


def _findings(by_task: dict[str, dict[str, float]]) -> dict[str, Finding]:
    found = {}
    decided = {task: kinds for task, kinds in by_task.items() if {"decay", "none", "alibi"} <= kinds.keys()}
    if decided:
        better = [t for t, k in decided.items() if k["decay"] > max(k["none"], k["alibi"]) + POINT]
        found["decay"] = _verdict("decay ahead on", better, list(decided))
    decided = {task: kinds for task, kinds in by_task.items() if {"las", "decay", "smoothing"} <= kinds.keys()}
    if decided:
        better = [t for t, k in decided.items() if k["las"] > max(k["decay"], k["smoothing"]) + POINT]
        found["las"] = _verdict("las ahead on", better, list(decided))
    decided = {task: kinds for task, kinds in by_task.items() if {"ls", "none", "ls-rotary", "rotary"} <= kinds.keys()}
    if decided:
        kept = [t for t, k in decided.items() if k["ls"] >= k["none"] - POINT and k["ls-rotary"] >= k["rotary"] - POINT]
        found["windows"] = _verdict("no loss on", kept, list(decided))
    return found


def _verdict(what: str, good: Sequence[str], all_tasks: Sequence[str]) -> Finding:
    ours = f"{what} {', '.join(good) or 'none'} of {', '.join(all_tasks)}"
    return Finding(ours=ours, verdict=verdict_of([task in good for task in all_tasks]))


def figure(data: dict[str, Any]) -> Any:
    """Test accuracy, a row a task and a column a kind of attention."""
    return figures.heat(
        data["rows"],
        x="kind",
        y="task",
        value="accuracy",
        value_title="test accuracy",
        x_title="attention",
        y_title="task",
        log=False,
        text=".1%",
        width=560,
        height=220,
    )


RECIPE = Recipe(
    name="long-range",
    question="Which attention is best on long-range tasks, all else equal?",
    method=(
        "A classifier of 6 layers, width 256, 8 heads, mean pooling, two-sided attention, no dropout; AdamW at 1e-3, "
        "cosine schedule, 32 rows a step. Arms differ in the attention alone: plain heads without positions, with "
        "sinusoidal, rotary and ALiBi positions, with LaS's decay (B 0.001), its smoothing (P 5, centred) and both, "
        "two-sided and causal, and LS with 2 global heads and a window of 64, without positions, with rotary ones, and "
        "smoothed. ListOps as published (arXiv 2011.04006); Pathfinder drawn by "
        "our code with 9 dashes and 40,000 pictures; with `--data`, also IMDB by bytes (2,048), CIFAR-10 and MNIST by "
        "pixels. Runs are far shorter than published ones: arms compare with each other, not with published numbers."
    ),
    cost="H200: about 25 minutes a task and seed, seven at a time; CPU --quick: half a minute",
    claims={
        "decay": Claim(
            text="decay of the logits with distance helps on long-range tasks, beyond no positions and ALiBi",
            paper="LaS (arXiv 2311.16620): both parts help; best among transformers",
            rule="test accuracy of decay more than a point above none and alibi: holds on every task, partly on some",
        ),
        "las": Claim(
            text="decay and smoothing together help more than either",
            paper="LaS (arXiv 2311.16620): both parts help",
            rule="test accuracy more than a point above decay and smoothing: holds on every task, partly on some",
        ),
        "windows": Claim(
            text="restricting most heads to a window does not hurt where dependencies are far",
            paper="left open",
            rule="LS within a point of plain heads or above, with and without rotary positions: holds on every task, "
            "partly on some",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    base=BASE,
    quick_base=QUICK_BASE,
    steps=5000,
)
