"""How many global heads, and how wide a window?

The paper has one global head and a window of 50 throughout; its reviewers missed an ablation. This is one: a grid of
global heads by windows at the paper's length, then other lengths and widths with one global head, to see whether the
best window grows with them: a rule of thumb, if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures, tables
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import (
    FAILS,
    HOLDS,
    PARTLY,
    Claim,
    Data,
    Experiment,
    Finding,
    Variants,
    verdict_of,
)
from experiments.engine.tables import shown
from experiments.window_rule import best_window, fit_window
from longshort.heads import HeadPlan
from longshort.train import TrainConfig
from longshort.train.variants import with_plan

WINDOWS = (2, 4, 8, 16, 32, 50, 100, 200, 512)
LENGTHS = (0.25, 0.5, 2.0, 4.0, 8.0)
"""Of the base's sequences: 512 to 16,384 for the paper's 2,048."""
WIDTHS = (0.5, 2.0)
"""Of the base's width, heads as many and as much narrower or wider."""
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
    """Longer or shorter sequences, as many tokens per step."""
    batch = max(1, base.data.batch_size * base.length // length)
    return replace(base, model=replace(base.model, context=length), data=replace(base.data, batch_size=batch))


def collect(folder: Path) -> Data:
    """The rows with their place in the grid, the best window of each length and width, and the rule through them."""
    data = measures.data_of(measures.outcomes(folder), folder, parts=_place, curve=None)
    data["rows"].sort(key=lambda row: _order(row["variant"]))
    bests = _bests(data["rows"])
    rule = fit_window([(b["length"], b["width"], b["window"]) for b in bests if not b["at_edge"]])
    return data | {"best_windows": bests, "rule": None if rule is None else rule._asdict()}


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


def _bests(rows: Sequence[Row]) -> list[Row]:
    """The best window with one global head, for every length and width that was tried with three windows or more."""
    found = []
    for length, width in sorted({(row["length"], row["width"]) for row in rows}):
        place = {"length": length, "width": width, "n_global": 1}
        losses = {
            r["window"]: r["final_loss"] for r in rows if r["window"] and all(r[k] == v for k, v in place.items())
        }
        best = best_window(losses)
        if best is not None:
            found.append({"length": length, "width": width, **best._asdict()})
    return found


def grid_of(data: Data) -> list[Row]:
    """The cells at the paper's length and width."""
    return [row for row in data["rows"] if row["variant"].startswith("g")]


def table(data: Data) -> str:
    grid = grid_of(data)
    cells = {(row["n_global"], row["window"]): row for row in grid}

    def cell(n_global: int, window: int) -> str:
        row = cells.get((n_global, window)) or cells.get((n_global, None))
        return "not run" if row is None else f"{shown(row['final_perplexity'])} / {shown(row['max_logit'], 3)}"

    header = ("global heads: final perplexity / max abs logit", *(f"window {w}" for w in WINDOWS))
    counts = sorted({row["n_global"] for row in grid})
    return tables.markdown(header, [(g, *(cell(g, w) for w in WINDOWS)) for g in counts])


def more(data: Data) -> str:
    header = ("length", "width", "best window", "loss", "at the edge of what was tried")
    lines = [
        (b["length"], b["width"], f"{b['window']:.0f}", shown(b["loss"]), "yes" if b["at_edge"] else "no")
        for b in data["best_windows"]
    ]
    rule = data["rule"]
    fit = "No rule: fewer than two lengths have a best window inside those tried.\n"
    if rule is not None:
        fit = (
            f"The fit through {rule['points']} of them: window = {rule['scale']:.3g} n^{rule['by_length']:.2f} "
            f"d^{rule['by_width']:.2f}, off by a factor of {2 ** rule['error']:.2f} (RMS).\n"
        )
    return "\n".join([tables.markdown(header, lines), fit, tables.losses(data["rows"])])


def _losses(data: Data) -> dict[tuple[int, int | None], float]:
    """Final losses of the grid by global heads and window, of cells with as many steps as any."""
    grid = grid_of(data)
    most = max((max(r["steps"]) for r in grid), default=0)
    return {
        (r["n_global"], r["window"]): math.inf if r["final_loss"] is None else r["final_loss"]
        for r in grid
        if set(r["steps"]) == {most}
    }


def choice(data: Data) -> Finding | None:
    losses = _losses(data)
    if (1, 50) not in losses or len(losses) < 10 or min(losses.values()) == math.inf:
        return None
    share = math.exp(min(losses[1, 50] - min(losses.values()), 700.0))
    ours = f"{share - 1:.1%} above the best of {len(losses)} cells"
    return Finding(ours=ours, verdict=HOLDS if share <= 1.02 else PARTLY if share <= 1.05 else FAILS)


def one(data: Data) -> Finding | None:
    losses = _losses(data)
    better = [losses[1, w] < losses[0, w] for w in WINDOWS if (0, w) in losses and (1, w) in losses]
    if not better:
        return None
    ours = f"one global head is better than none at {sum(better)} of {len(better)} windows"
    return Finding(ours=ours, verdict=verdict_of(better, of=len(WINDOWS)))


def above_the_best(data: Data) -> list[dict[str, Any]]:
    """Perplexity with one global head by the window, a line for each length and width that has a best one."""
    points = []
    for b in data["best_windows"]:
        place = (b["length"], b["width"], 1)
        same = [r for r in data["rows"] if r["window"] and (r["length"], r["width"], r["n_global"]) == place]
        finite = [r for r in same if r["final_perplexity"] is not None]
        lowest = min((r["final_perplexity"] for r in finite), default=math.inf)
        series = f"n {b['length']}, d {b['width']}"
        points += [
            {"window": r["window"], "above": r["final_perplexity"] / lowest, "series": series, "detail": ""}
            for r in sorted(finite, key=lambda r: int(r["window"]))
        ]
    return points


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    cells = [
        {"g": row["n_global"], "w": w, "perplexity": row["final_perplexity"], "logit": row["max_logit"]}
        for row in grid_of(data)
        for w in (WINDOWS if row["window"] is None else (row["window"],))
    ]
    common: dict[str, Any] = {"x": "w", "y": "g", "x_title": "window", "y_title": "global heads", "width": 330}
    charts = [
        figures.heat(cells, value="perplexity", value_title="perplexity", text=".3~g", **common),
        figures.heat(cells, value="logit", value_title="max |logit|", text=".3~s", **common),
    ]
    points = above_the_best(data)
    if points:
        axes: dict[str, Any] = {
            "x": "window",
            "y": "above",
            "x_title": "window",
            "y_title": "perplexity / the best one's",
            "names": list(dict.fromkeys(point["series"] for point in points)),
        }
        charts.append(figures.lines(points, log_x=True, points=True, **axes))
    return drawing().hconcat(*charts).resolve_scale(color="independent", strokeDash="independent")


EXPERIMENT = Experiment(
    name="heads-and-window",
    question="How many global heads, and how wide a window?",
    method=(
        "The author's model on sequences of 2,048 tokens, 32,768 tokens per step, 5 times the author's learning rate, "
        "short runs; 0 to 6 global heads by nine windows. Then sequences of 512 to 16,384 and half and twice the "
        "width, with one global head, for the rule of thumb: the best window is the lowest point of a parabola in log "
        "window."
    ),
    cost="H200: about 30 minutes for one seed, eight at a time; CPU --quick: some minutes",
    caption=(
        "Final perplexity (left) and largest |logit| (middle) by global heads and window; perplexity by the window, "
        "relative to the best one, at every length n and width d (right)."
    ),
    claims={
        "choice": Claim(
            text="one global head and a window of 50 are a good choice at n 2048",
            paper="its defaults; reviewers missed an ablation",
            rule="final perplexity, after equal steps, within 2 % of the best cell holds, within 5 % partly",
            judge=choice,
        ),
        "one": Claim(
            text="a global head is needed",
            paper="none: perplexity about 36 -> about 42",
            rule="holds if one global head is better than none at every window, partly if at some",
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
