"""Does the gain of LaS attention grow with the length of the sequences, and with more training data?

LaS attention (arXiv 2311.16620) is said to gain more on longer inputs and with more training data. Both are tested on
ListOps: three lengths by three numbers of training examples.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.classifiers import BASE, KINDS, POINT, QUICK_BASE, on_task
from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import paired, verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import percent
from longshort.train import TrainConfig

LENGTHS, AMOUNTS = (128, 256, 512), (1_000, 10_000, 96_000)
PLAIN, CHANGED = "none", ("rotary", "las", "ls")
MARGIN = 2 * POINT
"""A gain is the difference of two accuracies over 10,000 sequences: a smaller change of the gain decides nothing."""


def variants(base: TrainConfig) -> Variants:
    """Every length with every amount; sizes set in the base, if any, are those of the largest cell."""
    longer, more = (base.task.length or LENGTHS[-1]) / LENGTHS[-1], (base.task.train or AMOUNTS[-1]) / AMOUNTS[-1]
    found: Variants = {}
    for length in (round(longer * n) for n in LENGTHS):
        for amount in (round(more * n) for n in AMOUNTS):
            cell = replace(base, task=replace(base.task, length=length, train=amount))
            config = on_task(cell, "listops", {"test": 10_000})
            found |= {f"n{length}-x{amount}-{kind}": KINDS[kind](config) for kind in (PLAIN, *CHANGED)}
    return found


def collect(folder: Path) -> Data:
    """The accuracy of every cell."""
    found = measures.outcomes(folder)
    data = measures.data_of(found, folder, row=measures.accuracy_row, parts=_parts, curve=None)
    data["rows"].sort(key=lambda row: _place(row["variant"]))
    return data


def _place(name: str) -> tuple[int, int, int]:
    length, amount, kind = name.split("-")
    return int(length[1:]), int(amount[1:]), (PLAIN, *CHANGED).index(kind)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    length, amount, kind = _place(variant)
    return {"length": length, "examples": amount, "kind": (PLAIN, *CHANGED)[kind]}


def gains(data: Data) -> dict[tuple[int, int], dict[str, float]]:
    """By length and number of examples: how far each kind of attention is above plain heads."""
    shares: dict[tuple[int, int], dict[str, float]] = {}
    for row in data["rows"]:
        if row["accuracy"] is not None:
            shares.setdefault((row["length"], row["examples"]), {})[row["kind"]] = row["accuracy"]
    return {
        cell: {kind: share - kinds[PLAIN] for kind, share in kinds.items() if kind != PLAIN}
        for cell, kinds in shares.items()
        if PLAIN in kinds
    }


def table(data: Data) -> str:
    plain = {(row["length"], row["examples"]): row["accuracy"] for row in data["rows"] if row["kind"] == PLAIN}
    seeds: dict[tuple[int, int], list[int]] = {}
    for row in data["rows"]:
        seeds.setdefault((row["length"], row["examples"]), []).append(len(row["seeds"]))
    header = (
        "length",
        "training examples",
        "seeds",
        f"{PLAIN}: test accuracy",
        *(f"{kind}: gain, points" for kind in CHANGED),
    )
    lines = []
    for (length, amount), kinds in gains(data).items():
        shown = [f"{100 * kinds[kind]:+.1f}" if kind in kinds else "not measured" for kind in CHANGED]
        lines.append(
            (length, f"{amount:,}", tables.span(seeds[length, amount]), percent(plain[length, amount]), *shown)
        )
    return tables.markdown(header, lines)


def with_length(data: Data) -> Finding | None:
    lines = {f"{x:,} examples": ((LENGTHS[0], x), (LENGTHS[-1], x)) for x in AMOUNTS}
    return _grows(data, f"length {LENGTHS[0]} -> {LENGTHS[-1]}", lines)


def with_data(data: Data) -> Finding | None:
    lines = {f"length {n}": ((n, AMOUNTS[0]), (n, AMOUNTS[-1])) for n in LENGTHS}
    return _grows(data, f"{AMOUNTS[0]:,} -> {AMOUNTS[-1]:,} examples", lines)


def _grows(data: Data, change: str, lines: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]) -> Finding | None:
    """Does the gain of las grow by more than the margin from the first cell of each line to the second? Each line of
    the grid is judged by its two ends, where both were run.
    """
    las = las_gains(data)
    ends = {name: (las[a], las[b]) for name, (a, b) in lines.items() if a in las and b in las}
    grown = {name: found for name, (a, b) in ends.items() if (found := paired(b, a)) is not None}
    if not grown:
        return None
    means = {name: [statistics.fmean(of.values()) for of in ends[name]] for name in grown}
    shown = ", ".join(f"{100 * start:+.1f} -> {100 * end:+.1f} ({name})" for name, (start, end) in means.items())
    verdict = verdict_of([found.is_above(MARGIN) for found in grown.values()])
    cells = {cell for name in grown for cell in lines[name]}
    compared = [r for r in data["rows"] if (r["length"], r["examples"]) in cells and r["kind"] in (PLAIN, "las")]
    seeds = (*comparison.seeds_of(*compared), *(found.seeds for found in grown.values()))
    return Finding(ours=f"points gained, {change}: {shown}", verdict=verdict, seeds=seeds)


def las_gains(data: Data) -> dict[tuple[int, int], dict[int, float]]:
    """How far las is above plain heads, by cell and seed."""
    shares = {(row["length"], row["examples"], row["kind"]): comparison.accuracies_by_seed(row) for row in data["rows"]}
    found = {}
    for cell in dict.fromkeys((row["length"], row["examples"]) for row in data["rows"]):
        las, plain = (shares.get((*cell, kind), {}) for kind in ("las", PLAIN))
        if gains := {seed: las[seed] - plain[seed] for seed in las if seed in plain}:
            found[cell] = gains
    return found


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    panels = []
    for amount in sorted({row["examples"] for row in data["rows"]}):
        points = [
            {"series": kind, "detail": "", "length": length, "points": 100 * gain}
            for (length, examples), kinds in gains(data).items()
            for kind, gain in kinds.items()
            if examples == amount
        ]
        axes: dict[str, Any] = {"x": "length", "x_title": "length", "y": "points", "y_title": f"points above {PLAIN}"}
        options: dict[str, Any] = {"names": CHANGED, "log_x": True, "points": True, "width": 225, **axes}
        panels.append(figures.lines(points, title=f"{amount:,} training examples", **options))
    return drawing().hconcat(*panels).resolve_scale(x="shared", y="shared")


EXPERIMENT = Experiment(
    name="las-gain",
    question="Does the gain of LaS attention grow with the length of the sequences, and with more training data?",
    method=(
        "The classifier of `long-range` on ListOps, with sequences of up to 128, 256 and 512 tokens, each with 1,000, "
        "10,000 and 96,000 training examples, 10,000 test examples and equal steps in all cells: plain heads without "
        "positions, plain heads with rotary positions, LaS attention (B 0.001, P 5, centred), and LS with 2 global "
        "heads and a window of 64. Gains are differences in test accuracy after the last step, which with 1,000 "
        "examples comes after many epochs. `--variants 'n512-*'` or `'*-x96000-*'` chooses a line of the grid."
    ),
    cost="H200: about 6 minutes per seed, six at a time; CPU --quick: some minutes",
    caption=(
        "Gain over plain heads without positions against the length, by the number of training examples; one seed."
    ),
    claims={
        "length": Claim(
            text="the gain of LaS attention over plain heads grows with the context length",
            paper="LaS (arXiv 2311.16620): gains grow with context length",
            rule=f"the gain of las at the longest sequences is more than {100 * MARGIN:.0f} points above that at the "
            "shortest, by the whole paired interval: holds if so with every number of training examples for which both "
            "were run, partly with some",
            judge=with_length,
        ),
        "data": Claim(
            text="the gain of LaS attention over plain heads grows with the number of training examples",
            paper="a summary of LaS (EkinUcar in github.com/CENG501-Projects/CENG501-Fall2024): more training data "
            "helps it but not plain heads",
            rule=f"the gain of las with the most examples is more than {100 * MARGIN:.0f} points above that with the "
            "fewest, by the whole paired interval: holds if so at every length for which both were run, partly at "
            "some; first written the other way round",
            judge=with_data,
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
