"""The paper's tables: every stabilizer at equal steps and at equal GPU time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import equal_time, figures, measures
from experiments.engine.recipe import FAILS, HOLDS, PARTLY, Arms, Claim, Finding, Recipe, Summary
from longshort.train import TrainConfig
from longshort.train.variants import VARIANTS

NAMES = (
    *("plain", "plain-flash", "plain-fp32", "qk-norm-head", "qk-norm-width", "qk-norm-plain", "softcap"),
    *("sigma-reparam", "qk-clip", "z-loss", "adagc", "all-local", "layer-wise", "ls"),
)


def arms(base: TrainConfig) -> Arms:
    """Every variant, and plain attention by PyTorch's FlashAttention and in fp32."""
    chosen = {name: VARIANTS[name](base) for name in NAMES if name in VARIANTS}
    plain = chosen["plain"]
    # The process of the run takes another kernel by this name, and does not compile around it.
    chosen["plain-flash"] = replace(plain, run=replace(plain.run, compile=False, cuda_graphs=False))
    chosen["plain-fp32"] = replace(plain, run=replace(plain.run, precision="fp32"))
    return {name: chosen[name] for name in NAMES}


def summarise(folder: Path) -> Summary:
    """Perplexity at equal steps, at equal time, and time to fixed perplexities."""
    found = measures.outcomes(folder)
    grouped, seconds = measures.by_arm(found, NAMES), measures.step_seconds(folder)
    rows = [measures.row(name, runs) for name, runs in grouped.items()]
    timed = [row for row in _whole(rows) if row["arm"] in seconds]
    budget = min((max(row["steps"]) * seconds[row["arm"]] for row in timed), default=None)
    for row in rows:
        runs, step = grouped[row["arm"]], seconds.get(row["arm"])
        row["step_seconds"] = step
        row["perplexity_at_equal_time"] = (
            None if step is None or budget is None else equal_time.perplexity_at(runs, budget / step)
        )
        row["seconds_to"] = {f"{target:g}": equal_time.seconds_to(runs, target, step) for target in equal_time.TARGETS}
    data = {
        "provenance": measures.provenance(found, folder),
        "rows": rows,
        "time_budget_seconds": budget,
        "curves": [measures.curves(name, outcome) for name, runs in grouped.items() for outcome in runs],
    }
    table = measures.standard_table(rows) + "\n" + equal_time.table(rows, budget)
    said = (*_sentences(_whole(rows), budget), *_shorter(rows, grouped))
    return Summary(data=data, table=table, sentences=said, findings=_findings(rows))


def _whole(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The arms of which every run took as many steps as any."""
    most = max(max(row["steps"]) for row in rows)
    return [row for row in rows if min(row["steps"]) == most]


def _shorter(rows: Sequence[dict[str, Any]], grouped: dict[str, list[measures.Outcome]]) -> list[str]:
    """What the other arms, which took fewer, had reached, and the main ones after as many."""
    said = []
    for row in rows:
        if row in _whole(rows):
            continue
        steps = min(row["steps"])
        peers = {name: equal_time.perplexity_at(grouped[name], steps) for name in ("plain", "ls") if name in grouped}
        there = ", ".join(f"{name} {measures.shown(p)}" for name, p in peers.items() if p is not None)
        mine = measures.shown(equal_time.perplexity_at(grouped[row["arm"]], steps))
        said.append(
            f"{row['arm']} took {steps:,} steps: perplexity {mine}" + (f" ({there} by then)." if there else ".")
        )
    return said


def _sentences(rows: Sequence[dict[str, Any]], budget: float | None) -> tuple[str, ...]:
    shown = measures.shown
    ranked = sorted((r for r in rows if r["final_perplexity"] is not None), key=lambda r: float(r["final_perplexity"]))
    if not ranked:
        return ("No arm ended with a finite loss.",)
    first = ", ".join(f"{r['arm']} {shown(r['final_perplexity'])}" for r in ranked[:3])
    said = [f"At equal steps the lowest final perplexities are {first}; the highest is {ranked[-1]['arm']} with "]
    said[0] += f"{shown(ranked[-1]['final_perplexity'])}."
    timed = sorted((r for r in rows if r["perplexity_at_equal_time"]), key=lambda r: r["perplexity_at_equal_time"])
    if budget is not None and timed:
        lowest = ", ".join(f"{r['arm']} {shown(r['perplexity_at_equal_time'])}" for r in timed[:3])
        said.append(f"At equal GPU time ({budget:.0f} s of steps) they are {lowest}.")
    wild = [f"{r['arm']} ({shown(r['max_logit'], 3)})" for r in rows if (r["max_logit"] or math.inf) > 400]
    broken = [r["arm"] for r in rows if r["diverged"]]
    said.append(f"Largest |logit| above 400: {', '.join(wild) or 'no arm'}; diverged: {', '.join(broken) or 'none'}.")
    return tuple(said)


def _findings(rows: Sequence[dict[str, Any]]) -> dict[str, Finding]:
    found, by_name, whole = {}, {row["arm"]: row for row in rows}, {row["arm"]: row for row in _whole(rows)}
    ls = by_name.get("ls")
    if ls is None:
        return {}
    norm, local = (whole.get(name) if "ls" in whole else None for name in ("qk-norm-head", "all-local"))
    slow, plain = (by_name.get(name) for name in ("plain-fp32", "plain"))
    if norm is not None:
        found["quality"] = _ratio(ls, norm, "QK-norm (head)", holds=0.5, partly=0.98)
    if local is not None:
        found["global"] = _ratio(ls, local, "all local", holds=0.93, partly=0.995)
    if plain is not None:
        mine, theirs = measures.peak(ls), measures.peak(plain)
        ours = f"{measures.shown(ls['max_logit'], 3)} against {measures.shown(plain['max_logit'], 3)}"
        verdict = HOLDS if mine < 50 and theirs > 200 else PARTLY if mine < theirs / 2 else FAILS
        found["logits"] = Finding(ours=ours, verdict=verdict)
    if slow is not None:
        pairs = [(t, ls["seconds_to"][t], slow["seconds_to"][t]) for t in ls["seconds_to"]]
        reached = [(t, a, b) for t, a, b in pairs if a is not None and b is not None]
        if reached:
            target, mine, theirs = reached[-1]
            share = mine / theirs
            ours = f"{mine:.0f} s against {theirs:.0f} s of plain fp32 to perplexity {target}: 1/{1 / share:.1f}"
            verdict = HOLDS if share <= 0.1 else PARTLY if share <= 0.5 else FAILS
            found["time"] = Finding(ours=ours, verdict=verdict)
    return found


def _ratio(ls: dict[str, Any], other: dict[str, Any], name: str, *, holds: float, partly: float) -> Finding:
    mine, theirs = ls["final_perplexity"], other["final_perplexity"]
    ours = f"{measures.shown(mine)} against {measures.shown(theirs)} ({name})"
    share = math.inf if mine is None else 0.0 if theirs is None else mine / theirs
    return Finding(ours=ours, verdict=HOLDS if share <= holds else PARTLY if share < partly else FAILS)


def figure(data: dict[str, Any]) -> Any:
    """Validation perplexity and the largest |logit| over steps; where steps were timed, perplexity over GPU time, too.

    The arm of fp32 would make that axis twenty times as long, and is left out of it.
    """
    from longshort.report.charts import drawing

    names = [row["arm"] for row in data["rows"]]
    over_steps = figures.over_steps(data, names, width=330, height=300)
    seconds = {row["arm"]: row["step_seconds"] for row in data["rows"] if row["step_seconds"] is not None}
    fastest = min(seconds.values(), default=0.0)
    shown = [c for c in data["curves"] if seconds.get(c["arm"], math.inf) < 4 * fastest]
    if not shown:
        return over_steps
    timed = [
        row | {"seconds": row["step"] * seconds[curve["arm"]]} for curve in shown for row in figures.points([curve])[0]
    ]
    axes: dict[str, Any] = {"x": "seconds", "x_title": "GPU seconds", "y": "perplexity", "names": names, "log": True}
    over_time = figures.lines(timed, y_title="validation perplexity", width=330, height=300, **axes)
    return drawing().hconcat(over_time, over_steps)


RECIPE = Recipe(
    name="stabilizers",
    question="Which stabilizer is best at equal steps, and at equal GPU time?",
    method=(
        "The author's model on rows of 2,048 tokens, 16 rows a step, at 5 times the author's learning rate, where the "
        "effect shows within minutes; one kernel and bf16 for all arms but plain-flash (PyTorch's FlashAttention, in a "
        "model that is not compiled) and plain-fp32. Step times come from `--time-steps`, one arm alone on the GPU; "
        "runs that share it give no time."
    ),
    cost="H200: about 12 minutes a seed, seven at a time, and 4 for --time-steps; CPU --quick: two minutes",
    claims={
        "quality": Claim(
            text="LS-attention against QK-norm: perplexity",
            paper="about 38 vs about 112 (nearly 2/5)",
            rule="final perplexities at equal steps: holds if LS is at most 0.5 of QK-norm (head), partly below 0.98",
        ),
        "time": Claim(
            text="GPU hours to equal perplexity, against a second method (most likely full-precision attention)",
            paper="1/20",
            rule="to the lowest listed perplexity that LS and plain-fp32 both reach: holds at 1/10, partly at 1/2",
        ),
        "logits": Claim(
            text="largest |logit|, LS against plain",
            paper="< 50 vs > 200",
            rule="holds if LS < 50 and plain > 200; partly if LS is below half of plain",
        ),
        "global": Claim(
            text="without a global head perplexity is worse",
            paper="about 36 -> about 42",
            rule="final perplexities at equal steps: holds if LS is at most 0.93 of all-local, partly below 0.995",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    settings={"optimizer.lr": 3e-3},
    steps=4000,
)
