"""Long Range Arena's tasks: arms that are identical but for the attention."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.engine import accuracy, figures, measures
from experiments.engine.classifiers import BASE, KINDS, POINT, QUICK_BASE, on_task
from experiments.engine.recipe import NOT_RUN, Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.data.tasks import classes_of
from longshort.train import TrainConfig

GENERATED: dict[str, dict[str, Any]] = {
    "listops": {"length": 512},
    "pathfinder": {"paddles": 9, "train": 40_000, "validation": 2_000, "test": 4_000},
}
READ: dict[str, dict[str, Any]] = {"text": {"length": 1024}, "image": {}, "smnist": {}}
"""Settings that differ from the published ones, so that a run takes a minute or two: attention alone of a row of 2,000
tokens costs fifteen times that of one of 512, and at that length two of three kinds had learned nothing of ListOps
after 3,000 steps (docs/results/long-rows-h200.json)."""
NAMES = tuple(f"{task}-{kind}" for task in (*GENERATED, *READ) for kind in KINDS)
PUBLISHED: dict[str, dict[str, float]] = {
    "Transformer (arXiv 2011.04006)": {"listops": 0.3637, "pathfinder": 0.7140, "text": 0.6427, "image": 0.4244},
    "Transformer (in arXiv 2111.00396, table 6)": {"smnist": 0.989},
    "S4 (arXiv 2111.00396)": {"listops": 0.5960, "pathfinder": 0.9420, "text": 0.8682, "image": 0.8865},
    "S4 (arXiv 2111.00396, table 6)": {"smnist": 0.9963},
    "MEGA (arXiv 2209.10655)": {"listops": 0.6314, "pathfinder": 0.9601, "text": 0.9043, "image": 0.9044},
}
"""Test accuracies of others; LaS's own (arXiv 2311.16620) are unknown to us."""
LEAST = 3
"""Tasks on which arms can be compared, for a claim to hold or not: one alone says little of long-range tasks."""
BySeed = dict[str, dict[str, dict[int, float]]]
LEARNED = 0.1
"""How far above guessing the best of the arms that are compared must be: arms that all guess are alike."""


def arms(base: TrainConfig) -> Arms:
    """Every task with every kind of attention; those that are read come in where `--data` names their folder."""
    tasks = {**GENERATED, **(READ if base.task.path else {})}
    return {
        f"{task}-{kind}": change(on_task(base, task, settings))
        for task, settings in tasks.items()
        for kind, change in KINDS.items()
    }


def summarise(folder: Path) -> Summary:
    """Accuracy of every kind of attention, task by task."""
    found = measures.outcomes(folder)
    rows = accuracy.rows(found, folder, NAMES, _parts)
    data = {"provenance": measures.provenance(found, folder), "rows": rows, "published": PUBLISHED}
    by_task = _by_task(rows)
    table = f"{accuracy.table(rows)}\n{_published_table(by_task)}"
    return Summary(data=data, table=table, sentences=_sentences(by_task), findings=_findings(_by_seed(rows)))


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


def _by_seed(rows: Sequence[dict[str, Any]]) -> BySeed:
    """Accuracies by task, kind and seed, of what was measured."""
    found: BySeed = {}
    for row in rows:
        if len(row["accuracies"]) == len(row["seeds"]):
            shares = dict(zip(row["seeds"], row["accuracies"], strict=True))
            found.setdefault(row["task"], {})[row["kind"]] = shares
    return found


def _published_table(by_task: dict[str, dict[str, float]]) -> str:
    """What others report on the same tasks, below the best of ours."""

    def cells(shares: Mapping[str, float]) -> list[str]:
        return [accuracy.percent(shares[task]) if task in shares else "" for task in by_task]

    best = {task: max(kinds, key=lambda kind: kinds[kind]) for task, kinds in by_task.items()}
    ours = [f"{accuracy.percent(by_task[task][kind])} ({kind})" for task, kind in best.items()]
    rows = [("our best arm", *ours)]
    rows += [(model, *cells(shares)) for model, shares in PUBLISHED.items() if shares.keys() & by_task.keys()]
    return (
        "Published test accuracies on the same tasks, after longer training and at the published sizes (ListOps of 500 "
        "to 2,000 tokens, text of 4,000 bytes, Pathfinder with 14 dashes). Those of LaS itself (arXiv 2311.16620) are "
        "unknown to us.\n\n"
        f"{measures.markdown(('model', *by_task), rows)}"
    )


def _sentences(by_task: dict[str, dict[str, float]]) -> tuple[str, ...]:
    said = []
    for task, kinds in by_task.items():
        ranked = sorted(kinds, key=lambda kind: -kinds[kind])
        listed = ", ".join(f"{kind} {accuracy.percent(kinds[kind])}" for kind in ranked)
        said.append(f"{task}: {listed}.")
    return tuple(said) or ("No accuracy was measured yet.",)


def _findings(by_task: BySeed) -> dict[str, Finding]:
    found = {}
    if decided := _compared(by_task, "decay", "none", "alibi"):
        better = [task for task, (decay, *others) in decided.items() if decay > max(others) + POINT]
        found["decay"] = _verdict("decay ahead on", better, list(decided))
    if decided := _compared(by_task, "las", "decay", "smoothing"):
        better = [task for task, (las, *others) in decided.items() if las > max(others) + POINT]
        found["las"] = _verdict("las ahead on", better, list(decided))
    both = {task: own for task, own in by_task.items() if {"ls", "none", "ls-rotary", "rotary"} <= own.keys()}
    pairs = [_compared(both, "ls", "none"), _compared(both, "ls-rotary", "rotary")]
    if tasks := [task for task in both if any(task in pair for pair in pairs)]:
        lost = {task for pair in pairs for task, (ls, plain) in pair.items() if ls < plain - POINT}
        found["windows"] = _verdict("no loss on", [task for task in tasks if task not in lost], tasks)
    return found


def _compared(by_task: BySeed, *kinds: str) -> dict[str, tuple[float, ...]]:
    """Mean accuracies of these kinds over the seeds that all of them have, on tasks that one of them has learned."""
    found = {}
    for task, own in by_task.items():
        seeds = set.intersection(*(set(own.get(kind, ())) for kind in kinds))
        shares = tuple(statistics.fmean(own[kind][seed] for seed in seeds) for kind in kinds) if seeds else ()
        if max(shares, default=0.0) >= _guessing(task) + LEARNED:
            found[task] = shares
    return found


def _guessing(task: str) -> float:
    return 1 / (classes_of(task) or 1)


def _verdict(what: str, good: Sequence[str], all_tasks: Sequence[str]) -> Finding:
    ours = f"{what} {', '.join(good) or 'none'} of {', '.join(all_tasks)}"
    verdict = verdict_of([task in good for task in all_tasks], of=LEAST)
    return Finding(ours=ours + (f" ({LEAST} learned tasks decide)" if verdict == NOT_RUN else ""), verdict=verdict)


def figure(data: dict[str, Any]) -> Any:
    """Test accuracy, a row a task and a column a kind of attention, coloured from the worst of a task to its best."""
    by_task = _by_task(data["rows"])
    ends = {task: (min(kinds.values()), max(kinds.values())) for task, kinds in by_task.items()}
    cells = []
    for row in data["rows"]:
        if row["accuracy"] is not None:
            low, high = ends[row["task"]]
            cells.append(row | {"standing": (row["accuracy"] - low) / ((high - low) or 1.0)})
    return figures.heat(
        cells,
        x="kind",
        y="task",
        value="standing",
        value_title="from worst to best",
        label="accuracy",
        x_title="attention",
        y_title="task",
        log=False,
        text=".1%",
        width=560,
        height=60 + 40 * len(by_task),
    )


RECIPE = Recipe(
    name="long-range",
    question="Which attention is best on long-range tasks, all else equal?",
    method=(
        "A classifier of 6 layers, width 256, 8 heads, mean pooling, two-sided attention, no dropout; AdamW at 1e-3, "
        "cosine schedule, 32 rows a step. Arms differ in the attention alone: plain heads without positions, with "
        "sinusoidal, rotary and ALiBi positions, with LaS's decay (B 0.001), its smoothing (P 5, centred) and both, "
        "two-sided and causal; LS with 2 global heads and a window of 64, without positions, with rotary ones, and "
        "smoothed; and, when asked for by name (`--arms '*-las-before'`), LaS with its pooling before the softmax, "
        "which forms whole attention matrices and so trains in micro-batches. ListOps (arXiv 2011.04006) in rows of "
        "128 to 512 tokens; Pathfinder drawn by our code with 9 dashes and 40,000 pictures; with `--data`, also IMDB "
        "by bytes (1,024), CIFAR-10 and MNIST by pixels. Runs are far shorter than published ones: arms compare with "
        "each other, not with published numbers. On ListOps it is in part chance whether a run begins to learn within "
        "its steps ([repeats](listops-repeats.json)): single runs of one arm differ by up to 16 points."
    ),
    cost="H200: about 15 minutes a seed, forty with --data, five at a time, without *-las-before; "
    "CPU --quick: some minutes",
    claims={
        "decay": Claim(
            text="decay of the logits with distance helps on long-range tasks, beyond no positions and ALiBi",
            paper="LaS (arXiv 2311.16620): both parts help; best among transformers",
            rule="test accuracy of decay more than a point above none and alibi: holds on every task, partly on some; "
            "over the seeds that all of them have; "
            f"where none of these arms is {100 * LEARNED:.0f} points above guessing they are not compared, and {LEAST} "
            "tasks must be left",
        ),
        "las": Claim(
            text="decay and smoothing together help more than either",
            paper="LaS (arXiv 2311.16620): both parts help",
            rule="test accuracy more than a point above decay and smoothing: holds on every task, partly on some; "
            "the same conditions",
        ),
        "windows": Claim(
            text="restricting most heads to a window does not hurt where dependencies are far",
            paper="left open",
            rule="LS within a point of plain heads or above, with and without rotary positions: holds on every task, "
            "partly on some; the same conditions",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    base=BASE,
    quick_base=QUICK_BASE,
    on_request=tuple(f"{task}-las-before" for task in (*GENERATED, *READ)),
    steps=5000,
)
