"""Does restricting heads hurt where dependencies are sparse and far? Two probes by the number of global heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import accuracy, figures, measures, published
from experiments.engine.recipe import Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.heads import HeadPlan
from longshort.train import ConfigError, TrainConfig
from longshort.train.config import TaskConfig
from longshort.train.variants import with_plan

HEADS, WINDOW = 8, 16
GLOBAL_HEADS = (0, 1, 2, 4, HEADS)
TASKS: dict[str, dict[str, Any]] = {
    "recall": {"length": 128, "pairs": 8, "symbols": 64, "train": 100_000},
    "passkey": {"length": 512, "train": 50_000},
}
"""Of rows that small models learned within some thousand steps of a first try."""
SMALL: dict[str, dict[str, Any]] = {
    "recall": {"length": 32, "pairs": 2, "symbols": 32, "train": 64, "validation": 8, "test": 8},
    "passkey": {"length": 160, "digits": 2, "train": 64, "validation": 8, "test": 8},
}
NAMES = tuple(f"{task}-g{n}" for task in TASKS for n in GLOBAL_HEADS)
CLOSE = 0.02
"""Two points of accuracy."""
LEARNED = 0.5
"""Right answers of the best arm, for a task to decide anything: arms that all guess are close to each other, too."""

BASE: dict[str, dict[str, Any]] = {
    **accuracy.SECTIONS,
    "task": {"name": "recall"},
    "model": {
        "vocab_size": 256,
        "context": 512,
        "n_layers": 4,
        "width": 128,
        "n_heads": HEADS,
        "positions": "rotary",
    },
    "data": {"batch_size": 128},
}
QUICK_BASE: dict[str, dict[str, Any]] = {
    **BASE,
    **accuracy.QUICK_SECTIONS,
    "task": {"name": "recall", **SMALL["recall"]},
    "model": {**BASE["model"], "n_layers": 1, "width": 32},
}


def arms(base: TrainConfig) -> Arms:
    """Each task with every number of global heads; all heads global is plain attention."""
    small = base.task.train == SMALL["recall"]["train"]
    if base.task != TaskConfig(name="recall", seed=base.task.seed, **(SMALL["recall"] if small else {})):
        raise ConfigError(
            "recall has two tasks of fixed settings: of section task only seed can be set, nor is there --data"
        )
    found = {}
    for name, settings in (SMALL if small else TASKS).items():
        config = replace(base, task=TaskConfig(name=name, seed=base.task.seed, **settings))
        for n in (0, 1, HEADS) if small else GLOBAL_HEADS:
            plan = HeadPlan.long_short(HEADS, n, 4 if small else WINDOW)
            found[f"{name}-g{n}"] = with_plan(config, plan)
    return found


def summarise(folder: Path) -> Summary:
    """Accuracy by the number of global heads."""
    found = measures.outcomes(folder)
    rows = accuracy.rows(found, folder, NAMES, _parts)
    curves = published.with_earlier_curves([_curve(one) for one in found], folder)
    data = {"provenance": measures.provenance(found, folder), "rows": rows, "curves": curves}
    return Summary(data=data, table=accuracy.table(rows), sentences=_sentences(rows), findings=_findings(rows))


def _curve(outcome: measures.Outcome) -> dict[str, Any]:
    """Right answers of the validation rows over the steps."""
    shares = [[e.step, round(e.accuracy, 4)] for e in outcome.run.evaluations if e.accuracy is not None]
    return {"arm": outcome.arm, "seed": outcome.run.seed, **_parts(outcome.arm), "validation": shares}


def _parts(arm: str) -> dict[str, Any]:
    task, _, number = arm.partition("-g")
    return {"task": task, "n_global": int(number)}


def _by_heads(rows: Sequence[dict[str, Any]], task: str) -> dict[int, float]:
    return {row["n_global"]: row["accuracy"] for row in rows if row["task"] == task and row["accuracy"] is not None}


def _sentences(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    said = []
    for task in TASKS:
        measured = _by_heads(rows, task)
        listed = ", ".join(f"{accuracy.percent(share)} with {n}" for n, share in sorted(measured.items()))
        if listed:
            said.append(f"{task}, right answers by the number of global heads of {HEADS}: {listed}.")
    return tuple(said) or ("No accuracy was measured yet.",)


def _findings(rows: Sequence[dict[str, Any]]) -> dict[str, Finding]:
    found = {}
    measured = {task: _by_heads(rows, task) for task in TASKS}
    complete = {task: shares for task, shares in measured.items() if {0, 1, HEADS} <= shares.keys()}
    decided = {task: shares for task, shares in complete.items() if max(shares.values()) >= LEARNED}
    if len(decided) == len(TASKS):
        shown = {t: ", ".join(accuracy.percent(s[n]) for n in (0, 1, HEADS)) for t, s in decided.items()}
        ours = "; ".join(f"{task}: {shares} with 0, 1, {HEADS} global heads" for task, shares in shown.items())
        enough = [task for task, shares in decided.items() if shares[1] >= shares[HEADS] - CLOSE]
        needed = [task for task, shares in decided.items() if shares[0] < shares[1] - CLOSE]
        for key, good in (("enough", enough), ("needed", needed)):
            found[key] = Finding(ours=ours, verdict=verdict_of([task in good for task in TASKS]))
    return found


def figure(data: dict[str, Any]) -> Any:
    """Right answers against the number of global heads, and of each number over the steps."""
    from longshort.report.charts import drawing

    points = [
        {"series": row["task"], "detail": "", "n_global": row["n_global"], "accuracy": row["accuracy"]}
        for row in data["rows"]
    ]
    shared: dict[str, Any] = {"y": "accuracy", "share": True, "height": 240}
    axes: dict[str, Any] = {"x": "n_global", "x_title": f"global heads of {HEADS}", "y_title": "right answers, test"}
    panels = [figures.lines(points, names=tuple(TASKS), points=True, title="after the last step", **axes, **shared)]
    axes = {"x": "step", "x_title": "step", "y_title": "right answers, validation"}
    for task in TASKS:
        curves = [curve for curve in data["curves"] if curve["task"] == task]
        steps = [
            {"series": _heads(curve["n_global"]), "detail": str(curve["seed"]), "step": step, "accuracy": share}
            for curve in curves
            for step, share in curve["validation"]
        ]
        names = [_heads(n) for n in sorted({curve["n_global"] for curve in curves})]
        if steps:
            panels.append(figures.lines(steps, names=names, title=task, **axes, **shared))
    return drawing().hconcat(*panels).resolve_scale(color="independent")


def _heads(n_global: int) -> str:
    return f"{n_global} global"


RECIPE = Recipe(
    name="recall",
    question="Does restricting heads hurt where dependencies are sparse and far?",
    method=(
        "The language model itself, 4 layers of width 128, 8 heads, rotary positions, loss and accuracy at the marked "
        "positions alone, 128 rows a step. recall: multi-query associative recall (arXiv 2312.04927), 8 pairs in 128 "
        "tokens of 64 symbols, 100,000 training rows. passkey: five digits anywhere in 512 bytes of filler, asked for "
        "at the end, 50,000 rows. Local heads see 16 keys: through four layers half of the shorter row at most, an "
        "eighth of the longer one."
    ),
    cost="H200: about 5 minutes a seed, five at a time; CPU --quick: a minute",
    claims={
        "enough": Claim(
            text="one global head a layer is enough for sparse, far dependencies",
            paper="assumed; left open",
            rule="accuracy with 1 global head within 2 points of plain attention: holds on both tasks, partly on one; "
            f"nothing is decided unless some arm has {LEARNED:.0%} right on each",
        ),
        "needed": Claim(
            text="a global head is needed for them",
            paper="none: perplexity about 36 -> about 42",
            rule="accuracy without a global head more than 2 points below that with one: holds on both, partly on one; "
            "the same condition",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    base=BASE,
    quick_base=QUICK_BASE,
    steps=6000,
)
