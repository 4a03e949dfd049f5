"""How many global heads, and how wide a window?

The paper uses one global head and a window of 50 throughout, and its reviewers missed an ablation. This is one: a grid
of global heads by windows at the paper's length, then other lengths and widths with one global head, to see whether the
best window grows with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import by_bounds, verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import shown
from longshort.heads import HeadPlan
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import with_plan

WINDOWS = (2, 4, 8, 16, 32, 50, 100, 200, 512)
LENGTHS = (0.25, 0.5, 2.0, 4.0, 8.0)
"""As multiples of the base's length: 512 to 16,384 for the paper's 2,048."""
WIDTHS = (0.5, 2.0)
"""As multiples of the base's width; there are as many heads, narrower or wider by the same factor."""
RULE_WINDOWS = (2, 4, 8, 16, 50, 100, 200, 512)


def variants(base: TrainConfig) -> Variants:
    """The grid of heads and windows; then lengths and widths, each with one global head and several windows."""
    heads = base.model.n_heads
    cells = {f"g{g}-w{w}": _cell(base, g, w) for g in range(heads) for w in WINDOWS}
    cells[f"g{heads}"] = with_plan(base, HeadPlan.full(heads))
    for share in LENGTHS:
        longer = _of_length(base, round(share * base.length))
        cells |= {f"n{longer.length}-w{w}": _cell(longer, 1, w) for w in RULE_WINDOWS}
    for share in WIDTHS:
        wider = replace(base, model=replace(base.model, width=round(share * base.model.width)))
        cells |= {f"d{wider.model.width}-w{w}": _cell(wider, 1, w) for w in RULE_WINDOWS}
    return cells


def _cell(base: TrainConfig, n_global: int, window: int) -> TrainConfig:
    return with_plan(base, HeadPlan.long_short(n_heads=base.model.n_heads, n_global=n_global, window=window))


def _of_length(base: TrainConfig, length: int) -> TrainConfig:
    """Longer or shorter sequences, with as many tokens per step."""
    batch = max(1, base.data.batch_size * base.length // length)
    return replace(base, model=replace(base.model, context=length), data=replace(base.data, batch_size=batch))


def collect(folder: Path) -> Data:
    """The rows with their place in the grid."""
    data = measures.data_of(measures.outcomes(folder), folder, parts=_place, curve=None)
    data["rows"].sort(key=lambda row: _order(row["variant"]))
    return data


def _place(variant: str, runs: Sequence[Outcome]) -> Row:
    model, windows = runs[0].run.config["model"], runs[0].run.header.plans[0]
    local = [w for w in windows if w is not None]
    reach = {"n_global": len(windows) - len(local), "window": local[0] if local else None}
    return reach | {"length": model["context"], "width": model["width"]}


def _order(name: str) -> tuple[str, int, int]:
    """Grid, lengths, widths; each by its numbers. A variant of another experiment goes last."""
    first, _, window = name.partition("-w")
    if not first[1:].isdigit() or not (window or "0").isdigit():
        return "3", 0, 0
    return {"g": "0", "n": "1"}.get(name[0], "2"), int(first[1:]), int(window or 0)


def by_window(data: Data) -> dict[tuple[int, int], list[Row]]:
    """The rows with one global head, by length and width, sorted by window, where at least three windows were tried; a
    run without a finite final loss is left out.
    """
    found: dict[tuple[int, int], list[Row]] = {}
    for row in data["rows"]:
        if row["n_global"] == 1 and row["window"] and row["final_loss"] is not None:
            found.setdefault((row["length"], row["width"]), []).append(row)
    ordered = {place: sorted(rows, key=lambda row: int(row["window"])) for place, rows in sorted(found.items())}
    return {place: rows for place, rows in ordered.items() if len(rows) > 2}


def grid_of(data: Data) -> list[Row]:
    """The cells at the paper's length and width."""
    return [row for row in data["rows"] if row["variant"].startswith("g")]


def table(data: Data) -> str:
    grid = grid_of(data)
    cells = {(row["n_global"], row["window"]): row for row in grid}

    def cell(n_global: int, window: int) -> str:
        row = cells.get((n_global, window)) or cells.get((n_global, None))
        return "not run" if row is None else f"{shown(row['final_perplexity'])} / {shown(row['max_logit'], 3)}"

    header = ("global heads: final perplexity / max abs logit", "seeds", *(f"window {w}" for w in WINDOWS))
    seeds = {
        g: tables.span([len(row["seeds"]) for row in grid if row["n_global"] == g])
        for g in sorted({g for g, _ in cells})
    }
    return tables.markdown(header, [(g, seeds[g], *(cell(g, w) for w in WINDOWS)) for g in seeds])


def more(data: Data) -> str:
    header = ("length", "width", "seeds", "windows tried", "lowest at", "loss", "the next best", "nats above")
    lines = []
    for (length, width), rows in by_window(data).items():
        best, second = sorted(rows, key=lambda row: float(row["final_loss"]))[:2]
        seeds, tried = tables.span([len(row["seeds"]) for row in rows]), ", ".join(str(row["window"]) for row in rows)
        above = f"{second['final_loss'] - best['final_loss']:.3f}"
        lines.append((length, width, seeds, tried, best["window"], shown(best["final_loss"]), second["window"], above))
    return f"With one global head:\n\n{tables.markdown(header, lines)}\n{tables.losses(data)}"


def _cells(data: Data) -> dict[tuple[int, int | None], Row]:
    """The grid by global heads and window, without cells that have fewer steps than others and did not diverge."""
    grid = grid_of(data)
    most = max((max(r["steps"]) for r in grid), default=0)
    return {(r["n_global"], r["window"]): r for r in grid if {*comparison.steps_to_a_loss(r)} <= {most}}


def choice(data: Data) -> Finding | None:
    cells = _cells(data)
    finite = [row for row in cells.values() if row["final_loss"] is not None]
    if (1, 50) not in cells or len(cells) < 10 or not finite:
        return None
    mine, best = cells[1, 50], min(finite, key=lambda row: float(row["final_loss"]))
    if (above := comparison.difference(mine, best)) is None:
        return None
    verdict = by_bounds(above, holds=math.log(1.02), partly=math.log(1.05))
    ours = f"{math.exp(min(above.mean, 700.0)) - 1:.1%} above the best of {len(cells)} cells"
    return Finding(ours=ours, verdict=verdict, seeds=(*comparison.seeds_of(mine, best), above.seeds))


def one(data: Data) -> Finding | None:
    cells = _cells(data)
    pairs = [(cells[1, w], cells[0, w]) for w in WINDOWS if (0, w) in cells and (1, w) in cells]
    if not pairs:
        return None
    better = [comparison.is_lower(with_one, without) for with_one, without in pairs]
    ours = f"one global head is better than none at {better.count(True)} of {len(better)} windows"
    seeds = comparison.seeds_of(*(row for both in pairs for row in both))
    return Finding(ours=ours, verdict=verdict_of(better, of=len(WINDOWS)), seeds=seeds)


def above_the_best(data: Data) -> list[dict[str, Any]]:
    """Perplexity with one global head against the window, one line per length and width."""
    points = []
    for (length, width), rows in by_window(data).items():
        lowest = min(row["final_perplexity"] for row in rows)
        points += [
            {"window": row["window"], "above": row["final_perplexity"] / lowest, "length": length, "width": width}
            for row in rows
        ]
    return points


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    alt = drawing()
    cells = [
        {"g": row["n_global"], "w": w, "perplexity": row["final_perplexity"], "logit": row["max_logit"]}
        for row in grid_of(data)
        for w in (WINDOWS if row["window"] is None else (row["window"],))
    ]
    common: dict[str, Any] = {"x": "w", "y": "g", "x_title": "window", "y_title": "global heads", "width": 290}
    charts = [
        figures.heat(cells, value="perplexity", value_title="perplexity", text=".3~g", **common),
        figures.heat(cells, value="logit", value_title="max |logit|", text=".3~s", **common),
    ]
    points = above_the_best(data)
    rows = [alt.hconcat(*charts).resolve_scale(color="independent")]
    if points:
        width = grid_of(data)[0]["width"] if grid_of(data) else points[0]["width"]
        length = max({p["length"] for p in points}, key=lambda n: len({p["width"] for p in points if p["length"] == n}))
        chosen = {
            "length": [p for p in points if p["width"] == width],
            "width": [p for p in points if p["length"] == length],
        }
        rows.append(
            alt.hconcat(*(_by(key, found) for key, found in chosen.items() if found)).resolve_scale(color="independent")
        )
    return alt.vconcat(*rows).resolve_scale(color="independent")


def _by(key: str, points: Sequence[dict[str, Any]]) -> Any:
    """Perplexity against the window, one line per length or per width."""
    letter = {"length": "n", "width": "d"}[key]
    values = sorted({point[key] for point in points})
    lines = [point | {"series": f"{letter} {point[key]:,}", "detail": ""} for point in points]
    axes: dict[str, Any] = {"x": "window", "x_title": "window", "y": "above", "y_title": "perplexity / the best one's"}
    names = [f"{letter} {value:,}" for value in values]
    return figures.lines(lines, names=names, ordered=True, log_x=True, points=True, width=330, **axes)


EXPERIMENT = Experiment(
    name="heads-and-window",
    question="How many global heads, and how wide a window?",
    method=(
        "The author's model on sequences of 2,048 tokens, with 32,768 tokens per step and 5 times the author's "
        "learning rate, in short runs: 0 to 6 global heads by nine windows. Then, with one global head, sequences of "
        "512 to 16,384 tokens, and half and twice the width."
    ),
    cost="H200: about 30 minutes for one seed, eight at a time; CPU --quick: some minutes",
    caption=(
        "Final perplexity and largest |logit| of the run by global heads and window (top); perplexity against the "
        "window, relative to the best one tried, for the lengths n and the widths d (bottom). One seed."
    ),
    claims={
        "choice": Claim(
            text="one global head and a window of 50 are a good choice at n 2048",
            paper="its defaults; reviewers missed an ablation",
            rule="final perplexity after equal steps, the whole paired interval: holds if within 2 % of the best cell, "
            "partly if within 5 %",
            judge=choice,
        ),
        "one": Claim(
            text="a global head is needed",
            paper="none: perplexity about 36 -> about 42",
            rule="holds if one global head is better than none (the whole paired interval) at every window, partly if "
            "at some",
            judge=one,
        ),
    },
    collect=collect,
    table=table,
    more=more,
    figure=figure,
    variants=variants,
    settings={"optimizer.lr": 3e-3},
    steps=2000,
)
