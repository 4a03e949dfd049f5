"""Which attention is best on long-range tasks, all else equal?

The paper on LaS attention (arXiv 2311.16620) argues that plain heads do badly on Long Range Arena (arXiv 2011.04006)
because they lack locality; LaS adds it by a decay of logits with distance and by smoothing, and both are said to help.
Here a small classifier is trained with one kind of attention after another, LS-attention among them, and nothing else
differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.classifiers import BASE, KINDS, POINT, QUICK_BASE, on_task
from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import NOT_RUN, Difference, every, paired, verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import percent
from longshort.data.tasks import classes_of
from longshort.train import TrainConfig

GENERATED: dict[str, dict[str, Any]] = {
    "listops": {"length": 512},
    "pathfinder": {"paddles": 9, "train": 40_000, "validation": 2_000, "test": 4_000},
}
READ: dict[str, dict[str, Any]] = {"text": {"length": 1024}, "image": {}, "smnist": {}}
"""Settings that differ from the published ones, so that a run takes a minute or two: 2,000 tokens cost fifteen times as
much in attention alone as 512, and at that length two of three kinds had learned nothing of ListOps after 3,000 steps
(docs/results/long-rows-h200.json)."""
NAMES = tuple(f"{task}-{kind}" for task in (*GENERATED, *READ) for kind in KINDS)
PUBLISHED: dict[str, dict[str, float]] = {
    "Transformer (arXiv 2011.04006)": {"listops": 0.3637, "pathfinder": 0.7140, "text": 0.6427, "image": 0.4244},
    "Transformer (in arXiv 2111.00396, table 6)": {"smnist": 0.989},
    "S4 (arXiv 2111.00396)": {"listops": 0.5960, "pathfinder": 0.9420, "text": 0.8682, "image": 0.8865},
    "S4 (arXiv 2111.00396, table 6)": {"smnist": 0.9963},
    "MEGA (arXiv 2209.10655)": {"listops": 0.6314, "pathfinder": 0.9601, "text": 0.9043, "image": 0.9044},
}
"""Third-party test accuracies; LaS's own (arXiv 2311.16620) are unknown to us."""
LEAST = 3
"""How many tasks a verdict needs on which variants can be compared: one alone says little about long-range tasks."""
LEARNED = 0.1
"""How far above guessing the best of the compared variants must be: variants that all guess are alike."""


def variants(base: TrainConfig) -> Variants:
    """Every task with every kind of attention; tasks read from files are included where `--data` names their folder."""
    tasks = {**GENERATED, **(READ if base.task.path else {})}
    return {
        f"{task}-{kind}": change(on_task(base, task, settings))
        for task, settings in tasks.items()
        for kind, change in KINDS.items()
    }


def collect(folder: Path, names: Sequence[str] = NAMES) -> Data:
    """Accuracy of every kind of attention, task by task."""
    found = measures.outcomes(folder)
    data = measures.data_of(found, folder, names, row=measures.accuracy_row, parts=_parts, curve=None)
    return data | {"published": PUBLISHED}


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    task, _, kind = variant.partition("-")
    return {"task": task, "kind": kind}


def by_task(data: Data) -> dict[str, dict[str, float]]:
    """Accuracies by task and kind, where they were measured."""
    found: dict[str, dict[str, float]] = {}
    for row in data["rows"]:
        if row["accuracy"] is not None:
            found.setdefault(row["task"], {})[row["kind"]] = row["accuracy"]
    return found


def published_table(data: Data) -> str:
    """Third-party results on the same tasks, below the best of ours."""
    tasks = by_task(data)

    def cells(shares: Mapping[str, float]) -> list[str]:
        return [percent(shares[task]) if task in shares else "" for task in tasks]

    best = {task: max(kinds, key=lambda kind: kinds[kind]) for task, kinds in tasks.items()}
    lines = [("our best variant", *(f"{percent(tasks[task][kind])} ({kind})" for task, kind in best.items()))]
    lines += [(model, *cells(shares)) for model, shares in PUBLISHED.items() if shares.keys() & tasks.keys()]
    return (
        "Published test accuracies on the same tasks, after longer training and at the published sizes (ListOps of 500 "
        "to 2,000 tokens, text of 4,000 bytes, Pathfinder with 14 dashes). Those of LaS itself (arXiv 2311.16620) are "
        f"unknown to us.\n\n{tables.markdown(('model', *tasks), lines)}"
    )


def compared(data: Data, kind: str, *others: str) -> dict[str, list[Difference]]:
    """How far the first kind is above each of the others in accuracy, over the seeds that all of them have, on tasks
    that at least one of them has learned.
    """
    by_seed: dict[str, dict[str, dict[int, float]]] = {}
    for row in data["rows"]:
        by_seed.setdefault(row["task"], {})[row["kind"]] = comparison.accuracies_by_seed(row)
    found = {}
    for task, own in by_seed.items():
        seeds = sorted(set.intersection(*(set(own.get(name, ())) for name in (kind, *others))))
        shares = {name: {seed: own[name][seed] for seed in seeds} for name in (kind, *others)} if seeds else {}
        means = [statistics.fmean(of.values()) for of in shares.values()]
        if max(means, default=0.0) >= 1 / (classes_of(task) or 1) + LEARNED:
            pairs = (paired(shares[kind], shares[other]) for other in others)
            found[task] = [pair for pair in pairs if pair is not None]
    return found


def ahead(data: Data, *, kind: str, others: Sequence[str]) -> Finding | None:
    tasks = compared(data, kind, *others)
    cases = {task: every([pair.is_above(POINT) for pair in pairs]) for task, pairs in tasks.items()}
    shared = [pair.seeds for pairs in tasks.values() for pair in pairs]
    return _finding(f"{kind} ahead on", cases, (*_seeds(data, tasks, (kind, *others)), *shared))


def windows(data: Data) -> Finding | None:
    kinds = {"ls", "none", "ls-rotary", "rotary"}
    complete = {task for task in by_task(data) if kinds <= {r["kind"] for r in data["rows"] if r["task"] == task}}
    pairs = [compared(data, "ls", "none"), compared(data, "ls-rotary", "rotary")]
    tasks = [task for task in by_task(data) if task in complete and any(task in pair for pair in pairs)]
    found = {task: [one for pair in pairs for one in pair.get(task, ())] for task in tasks}
    kept = {task: every([one.is_at_least(-POINT) for one in ones]) for task, ones in found.items()}
    shared = [one.seeds for ones in found.values() for one in ones]
    return _finding("no loss on", kept, (*_seeds(data, tasks, kinds), *shared))


def _seeds(data: Data, tasks: Collection[str], kinds: Collection[str]) -> tuple[int, ...]:
    return comparison.seeds_of(*(row for row in data["rows"] if row["task"] in tasks and row["kind"] in kinds))


def _finding(what: str, cases: Mapping[str, bool | None], seeds: tuple[int, ...]) -> Finding | None:
    if not cases:
        return None
    good, open_ = ([task for task, case in cases.items() if case is value] for value in (True, None))
    ours = f"{what} {', '.join(good) or 'none'} of {', '.join(cases)}"
    ours += f"; undecided on {', '.join(open_)}" if open_ else ""
    verdict = verdict_of([*cases.values()], of=LEAST)
    ours += f" ({LEAST} learned tasks decide)" if verdict == NOT_RUN else ""
    return Finding(ours=ours, verdict=verdict, seeds=seeds)


def figure(data: Data) -> Any:
    tasks = by_task(data)
    ends = {task: (min(kinds.values()), max(kinds.values())) for task, kinds in tasks.items()}
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
        height=60 + 40 * len(tasks),
    )


EXPERIMENT = Experiment(
    name="long-range",
    question="Which attention is best on long-range tasks, all else equal?",
    method=(
        "A classifier of 6 layers, width 256 and 8 heads, with mean pooling, two-sided attention and no dropout; AdamW "
        "at 1e-3 with a cosine schedule, 32 sequences per step. Variants differ only in their attention: plain heads "
        "without positions and with sinusoidal, rotary and ALiBi positions; LaS's decay (B 0.001), its smoothing (P 5, "
        "centred), and both, two-sided and causal; LS with 2 global heads and a window of 64, without positions, with "
        "rotary positions, and smoothed. `--variants '*-las-before'` adds LaS with its pooling before the softmax, "
        "which forms whole attention matrices and so trains in micro-batches. The tasks are ListOps (arXiv 2011.04006) "
        "in sequences of 128 to 512 tokens and Pathfinder, drawn by our code with 9 dashes and 40,000 pictures; with "
        "`--data`, also IMDB by bytes (1,024), CIFAR-10 and MNIST by pixels. Runs are far shorter than published ones: "
        "variants can be compared with each other, not with published numbers. On ListOps it is partly chance whether "
        "a run begins to learn within its steps ([repeats](listops-repeats.json)): single runs of one variant differ "
        "by up to 16 points."
    ),
    cost="H200: about 15 minutes per seed, forty with --data, five at a time, without *-las-before; "
    "CPU --quick: some minutes",
    caption="Test accuracy by task and kind of attention, coloured from the worst of a task to its best.",
    claims={
        "decay": Claim(
            text="decay of the logits with distance helps on long-range tasks, beyond no positions and ALiBi",
            paper="LaS (arXiv 2311.16620): both parts help; best among transformers",
            rule="test accuracy of decay more than a point above that of none and alibi, by the whole paired interval "
            "over the seeds that all of them have: holds if on every task, partly if on some. A task on which no "
            f"variant of these is {100 * LEARNED:.0f} points above guessing does not count, and {LEAST} tasks must be "
            "left",
            judge=partial(ahead, kind="decay", others=("none", "alibi")),
        ),
        "las": Claim(
            text="decay and smoothing together help more than either",
            paper="LaS (arXiv 2311.16620): both parts help",
            rule="test accuracy of las more than a point above that of decay and smoothing: holds if on every task, "
            "partly if on some; the same conditions",
            judge=partial(ahead, kind="las", others=("decay", "smoothing")),
        ),
        "windows": Claim(
            text="restricting most heads to a window does not hurt where dependencies are far",
            paper="left open",
            rule="LS at most a point below plain heads, with and without rotary positions: holds if on every task, "
            "partly if on some; the same conditions",
            judge=windows,
        ),
    },
    collect=collect,
    table=lambda data: tables.accuracies(data["rows"]),
    more=published_table,
    figure=figure,
    variants=variants,
    base=BASE,
    quick_base=QUICK_BASE,
    on_request=tuple(f"{task}-las-before" for task in (*GENERATED, *READ)),
    steps=5000,
)
