"""What LaS and LS gain over plain heads, by the length of the rows and the number of training examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import accuracy, figures, measures
from experiments.engine.classifiers import BASE, KINDS, POINT, QUICK_BASE, on_task
from experiments.engine.recipe import Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.train import TrainConfig

LENGTHS, AMOUNTS = (128, 256, 512), (1_000, 10_000, 96_000)
PLAIN, CHANGED = "none", ("rotary", "las", "ls")
MARGIN = 2 * POINT
"""Gains are differences of two accuracies over 10,000 rows: a smaller change between two gains decides nothing."""

Gains = dict[tuple[int, int], dict[str, float]]
"""By length and number of examples: what each kind of attention has above plain heads."""


def arms(base: TrainConfig) -> Arms:
    """Every length with every amount; sizes of the base, if it has any, are those of the largest cell."""
    longer, more = (base.task.length or LENGTHS[-1]) / LENGTHS[-1], (base.task.train or AMOUNTS[-1]) / AMOUNTS[-1]
    found: Arms = {}
    for length in (round(longer * n) for n in LENGTHS):
        for amount in (round(more * n) for n in AMOUNTS):
            cell = replace(base, task=replace(base.task, length=length, train=amount))
            config = on_task(cell, "listops", {"test": 10_000})
            found |= {f"n{length}-x{amount}-{kind}": KINDS[kind](config) for kind in (PLAIN, *CHANGED)}
    return found


def summarise(folder: Path) -> Summary:
    """Accuracies, and the gains over plain heads."""
    found = measures.outcomes(folder)
    rows = sorted(accuracy.rows(found, folder, (), _parts), key=lambda row: _order(row["arm"]))
    gains = _gains(rows)
    data = {"provenance": measures.provenance(found, folder), "rows": rows, "gains": _listed(gains)}
    table = f"{_table(rows, gains)}\n{accuracy.table(rows)}"
    return Summary(data=data, table=table, sentences=_sentences(gains), findings=_findings(gains))


def _order(name: str) -> tuple[int, int, int]:
    length, amount, kind = name.split("-")
    return int(length[1:]), int(amount[1:]), (PLAIN, *CHANGED).index(kind)


def _parts(name: str) -> dict[str, Any]:
    length, amount, kind = _order(name)
    return {"length": length, "examples": amount, "kind": (PLAIN, *CHANGED)[kind]}


def _gains(rows: Sequence[dict[str, Any]]) -> Gains:
    shares: Gains = {}
    for row in rows:
        if row["accuracy"] is not None:
            shares.setdefault((row["length"], row["examples"]), {})[row["kind"]] = row["accuracy"]
    return {
        cell: {kind: share - kinds[PLAIN] for kind, share in kinds.items() if kind != PLAIN}
        for cell, kinds in shares.items()
        if PLAIN in kinds
    }


def _listed(gains: Gains) -> list[dict[str, Any]]:
    return [
        {"length": length, "examples": amount, "kind": kind, "gain": gain}
        for (length, amount), kinds in gains.items()
        for kind, gain in kinds.items()
    ]


def _table(rows: Sequence[dict[str, Any]], gains: Gains) -> str:
    plain = {(row["length"], row["examples"]): row["accuracy"] for row in rows if row["kind"] == PLAIN}
    header = ("length", "training examples", f"{PLAIN}: test accuracy", *(f"{kind}: gain, points" for kind in CHANGED))
    lines = []
    for (length, amount), kinds in gains.items():
        shown = [f"{100 * kinds[kind]:+.1f}" if kind in kinds else "not measured" for kind in CHANGED]
        lines.append((length, f"{amount:,}", accuracy.percent(plain[length, amount]), *shown))
    return measures.markdown(header, lines)


def _sentences(gains: Gains) -> tuple[str, ...]:
    said = []
    for kind in CHANGED:
        own = {cell: kinds[kind] for cell, kinds in gains.items() if kind in kinds}
        if own:
            (length, amount), (short, few) = max(own, key=lambda cell: own[cell]), min(own, key=lambda cell: own[cell])
            said.append(
                f"{kind} gains from {100 * own[short, few]:+.1f} points (length {short}, {few:,} examples) to "
                f"{100 * own[length, amount]:+.1f} (length {length}, {amount:,} examples) on {PLAIN}."
            )
    return tuple(said) or ("No gain was measured yet.",)


def _findings(gains: Gains) -> dict[str, Finding]:
    """Lines of the grid are judged by their two ends, where both were run."""
    las = {cell: kinds["las"] for cell, kinds in gains.items() if "las" in kinds}
    by_amount = {f"{x:,} examples": ((LENGTHS[0], x), (LENGTHS[-1], x)) for x in AMOUNTS}
    by_length = {f"length {n}": ((n, AMOUNTS[-1]), (n, AMOUNTS[0])) for n in LENGTHS}
    found = {}
    for key, change, lines in (
        ("length", f"length {LENGTHS[0]} -> {LENGTHS[-1]}", by_amount),
        ("data", f"{AMOUNTS[-1]:,} -> {AMOUNTS[0]:,} examples", by_length),
    ):
        ends = {name: (las[a], las[b]) for name, (a, b) in lines.items() if a in las and b in las}
        if ends:
            found[key] = _verdict(change, ends)
    return found


def _verdict(change: str, lines: Mapping[str, tuple[float, float]]) -> Finding:
    """Does the gain grow by more than the margin from the first cell of each line to the second?"""
    shown = ", ".join(f"{100 * start:+.1f} -> {100 * end:+.1f} ({name})" for name, (start, end) in lines.items())
    verdict = verdict_of([end - start > MARGIN for start, end in lines.values()])
    return Finding(ours=f"points gained, {change}: {shown}", verdict=verdict)


def figure(data: dict[str, Any]) -> Any:
    """The gain over plain heads against the length, a panel for each number of training examples."""
    from longshort.report.charts import drawing

    panels = []
    for amount in sorted({row["examples"] for row in data["rows"]}):
        points = [
            {"series": gain["kind"], "detail": "", "length": gain["length"], "points": 100 * gain["gain"]}
            for gain in data["gains"]
            if gain["examples"] == amount
        ]
        axes: dict[str, Any] = {"x": "length", "x_title": "length", "y": "points", "y_title": f"points above {PLAIN}"}
        options: dict[str, Any] = {"names": CHANGED, "log_x": True, "points": True, **axes}
        panels.append(figures.lines(points, title=f"{amount:,} training examples", **options))
    return drawing().hconcat(*panels).resolve_scale(x="shared", y="shared")


RECIPE = Recipe(
    name="las-gain",
    question="Does the gain of LaS attention grow with the length of the rows, and with less data?",
    method=(
        "The classifier of `long-range` on ListOps with rows of up to 128, 256 and 512 tokens, each with "
        "1,000, 10,000 and 96,000 training examples, 10,000 test examples, equal steps in all: plain heads without "
        "positions, with rotary ones, LaS attention (B 0.001, P 5, centred) and LS with 2 global heads and a window of "
        "64. Gains are differences of test accuracies after the last step, which with 1,000 examples comes after many "
        "epochs. "
        "Arms such as `--arms 'n512-*'` or `'*-x96000-*'` choose a line of the grid."
    ),
    cost="H200: about 6 minutes a seed, six at a time; CPU --quick: some minutes",
    claims={
        "length": Claim(
            text="the gain of LaS attention on plain heads grows with the context length",
            paper="LaS (arXiv 2311.16620): gains grow with context length",
            rule=f"gain of las at the longest rows more than {100 * MARGIN:.0f} points above that at the shortest: "
            "holds with every number of training examples of which both were run, partly with some",
        ),
        "data": Claim(
            text="the gain of LaS attention on plain heads is larger with less data",
            paper="expected of an inductive bias; a summary of LaS (EkinUcar in github.com/CENG501-Projects/"
            "CENG501-Fall2024) says that more data help it and not plain heads",
            rule=f"gain of las with the fewest examples more than {100 * MARGIN:.0f} points above that with the most: "
            "holds at every length of which both were run, partly at some",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    base=BASE,
    quick_base=QUICK_BASE,
    steps=3000,
)
