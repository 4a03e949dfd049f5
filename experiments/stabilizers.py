"""Which stabilizer is best at equal steps, and at equal GPU time? The paper's tables.

LS-attention is one of many ways to keep training stable; others are norms of queries and keys, caps and clips of
logits, losses and gradients. Each starts here from the same configuration, so that only one thing differs. Since their
steps take unequal time, they are also compared after equal time: the number of steps times the kernel time of a step,
measured with the variant alone on the device.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import by_bounds, paired, verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import shown
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

NAMES = (
    *("plain", "plain-flash", "plain-fp32", "qk-norm-head", "qk-norm-width", "qk-norm-plain", "softcap"),
    *("sigma-reparam", "qk-clip", "z-loss", "adagc", "all-local", "layer-wise", "ls"),
)
STRONG = ("ls", "plain", "layer-wise", "all-local", "qk-norm-head", "qk-clip")
"""Drawn in colours; the others are grey, so that no panel has more than six coloured lines."""
TARGETS = (150.0, 100.0, 80.0, 60.0, 50.0, 45.0, 40.0)
"""The time to each of these perplexities is measured where a variant reaches it."""


def variants(base: TrainConfig) -> Variants:
    """Every stabilizer, and plain attention by PyTorch's own kernel and in fp32."""
    chosen = {name: VARIANTS[name](base) for name in NAMES if name in VARIANTS}
    plain = chosen["plain"]
    chosen["plain-fp32"] = replace(plain, run=replace(plain.run, precision="fp32"))
    chosen["plain-flash"] = replace(
        plain,
        model=replace(plain.model, backend="sdpa"),
        run=replace(plain.run, compile=False, cuda_graphs=False),
        telemetry=replace(plain.telemetry, logits_every=0),  # PyTorch's attention gives no statistics
    )
    return {name: chosen[name] for name in NAMES}


def collect(folder: Path) -> Data:
    """Perplexity at equal steps, the time that all variants have, and the time to fixed perplexities."""
    found = measures.outcomes(folder)
    grouped, seconds = measures.by_variant(found, NAMES), measures.step_seconds(folder)
    data = measures.data_of(found, folder, NAMES)
    timed = [row for row in whole(data["rows"]) if row["variant"] in seconds]
    for row in data["rows"]:
        runs, step = grouped[row["variant"]], seconds.get(row["variant"])
        row["step_seconds"] = step
        row["seconds_to"] = {f"{target:g}": seconds_to(runs, target, step) for target in TARGETS}
    budget = min((_most(data["rows"]) * seconds[row["variant"]] for row in timed), default=None)
    return data | {"time_budget_seconds": budget}


def at_equal_time(data: Data, row: Row) -> list[float]:
    """The validation loss of each seed when the time is up, interpolated between evaluations; empty where a seed was
    not evaluated before then or did not get that far, or where a loss is not finite.
    """
    found = []
    for run in (run for run in data["curves"] if run["variant"] == row["variant"]):
        step = data["time_budget_seconds"] / row["step_seconds"]
        steps, losses = zip(*run["validation"], strict=True)
        after = bisect_left(steps, step * (1 - 1e-9))  # a step from a division by its own time may miss its number
        near = [loss for loss in losses[max(after - 1, 0) : after + 1] if loss is not None]
        if not 0 < after < len(steps) or len(near) < 2:
            return []
        share = (step - steps[after - 1]) / (steps[after] - steps[after - 1])
        found.append(near[0] + share * (near[1] - near[0]))
    return found


def seconds_to(runs: Sequence[Outcome], perplexity: float, step_seconds: float | None) -> float | None:
    """Mean over seeds; None where a seed does not reach the perplexity or no step was timed."""
    bound = math.log(perplexity)
    steps = [next((e.step for e in outcome.run.evaluations if e.loss <= bound), None) for outcome in runs]
    known = [step for step in steps if step is not None]
    if step_seconds is None or len(known) < len(steps):
        return None
    return step_seconds * sum(known) / len(known)


def whole(rows: Sequence[Row]) -> list[Row]:
    """The variants whose runs all have the full number of steps, but for those that diverged."""
    return [row for row in rows if {*comparison.steps_to_a_loss(row)} <= {_most(rows)}]


def _most(rows: Sequence[Row]) -> int:
    return max(step for row in rows for step in row["steps"])


def time_table(data: Data) -> str:
    budget = data["time_budget_seconds"]
    if budget is None:
        return "Time: not measured yet (`python -m experiments stabilizers --time-steps`).\n"
    lines = [
        (
            row["variant"],
            len(row["seeds"]),
            *(("",) * 3 if row["step_seconds"] is None else (shown(1e3 * row["step_seconds"], 3), *_timed(data, row))),
            *("" if s is None else f"{s:.1f}" for s in row["seconds_to"].values()),
        )
        for row in data["rows"]
    ]
    header = ("variant", "seeds", "ms per step", "perplexity at equal time", "of the first seed")
    return (
        f"Equal GPU time is {budget:.1f} s of steps, a step counted as the time of its kernels; the perplexity then "
        "is interpolated between evaluations. On the right, seconds to the first evaluation at or below a value:\n\n"
    ) + tables.markdown((*header, *(f"to {target:g}" for target in TARGETS)), lines)


def _timed(data: Data, row: Row) -> tuple[str, str]:
    losses = at_equal_time(data, row)
    if not losses:
        return "no finite evaluation then", ""
    mean, first = (measures.perplexity(loss) for loss in (sum(losses) / len(losses), losses[0]))
    return shown(mean), shown(first)


def quality(data: Data) -> Finding | None:
    return _ratio(data, "qk-norm-head", "QK-norm (head)", holds=0.5, partly=0.98)


def needs_global(data: Data) -> Finding | None:
    return _ratio(data, "all-local", "all local", holds=0.93, partly=0.995)


def _ratio(data: Data, other: str, words: str, *, holds: float, partly: float) -> Finding | None:
    """LS's final perplexity against another's, after equal steps."""
    rows = {row["variant"]: row for row in whole(data["rows"])}
    if not {"ls", other} <= rows.keys():
        return None
    ls, theirs = rows["ls"], rows[other]
    if (found := comparison.difference(ls, theirs)) is None:
        return None
    ours = f"{_over(ls, theirs)} against {_over(theirs, ls)} ({words})"
    if found.seeds > 1:
        ours += f", {math.exp(found.low):.2f} to {math.exp(found.high):.2f} of it (95 %, paired)"
    verdict = by_bounds(found, holds=math.log(holds), partly=math.log(partly))
    return Finding(ours=ours, verdict=verdict, seeds=(*comparison.seeds_of(ls, theirs), found.seeds))


def _over(row: Row, other: Row) -> str:
    """The perplexity of the mean loss over the seeds that the other has too: other means are not comparable."""
    if {*row["seeds"]} <= {*other["seeds"]}:
        return shown(row["final_perplexity"])
    losses = comparison.losses_by_seed(row)
    common = [losses.get(seed, math.inf) for seed in row["seeds"] if seed in other["seeds"]]
    mean = sum(common) / len(common)
    return shown(measures.perplexity(mean if math.isfinite(mean) else None))


def layers(data: Data) -> Finding | None:
    rows = {row["variant"]: row for row in whole(data["rows"])}
    if not {"ls", "layer-wise"} <= rows.keys():
        return None
    ls, other = rows["ls"], rows["layer-wise"]
    own, theirs = (comparison.losses_by_seed(row) for row in (ls, other))
    seeds = sorted(own.keys() & theirs.keys())
    if not seeds:
        return None
    words = [f"{math.exp(own[s]):.1f} against {math.exp(theirs[s]):.1f} at seed {s}" for s in seeds]
    verdict = verdict_of([comparison.is_lower(ls, other)])
    return Finding(ours=", ".join(words), verdict=verdict, seeds=(*comparison.seeds_of(ls, other), len(seeds)))


def logits(data: Data) -> Finding | None:
    rows = measures.by_name(data)
    return comparison.logits_against(rows["ls"], rows["plain"]) if {"ls", "plain"} <= rows.keys() else None


def time(data: Data) -> Finding | None:
    """Against plain attention in IEEE fp32; the time of bf16 to the same perplexity is given beside it."""
    rows = measures.by_name(data)
    if not {"ls", "plain-fp32"} <= rows.keys():
        return None
    mine, theirs = rows["ls"]["seconds_to"], rows["plain-fp32"]["seconds_to"]
    reached = [target for target in mine if mine[target] is not None and theirs[target] is not None]
    if not reached:
        return None
    target = reached[-1]
    found = paired(*(_seconds(data, rows[name], target) for name in ("ls", "plain-fp32")))
    if found is None:
        return None
    ours = f"{mine[target]:.1f} s to perplexity {target}, {theirs[target]:.0f} s of plain in IEEE fp32: "
    ours += f"1/{theirs[target] / mine[target]:.0f}, over the seeds of both 1/{math.exp(-found.mean):.0f}"
    if "plain" in rows and (half := rows["plain"]["seconds_to"][target]) is not None:
        ours += f"; {half:.1f} s of plain in bf16: 1/{half / mine[target]:.1f}"
    verdict = by_bounds(found, holds=math.log(0.1), partly=math.log(0.5))
    seeds = comparison.seeds_of(rows["ls"], rows["plain-fp32"])
    return Finding(ours=ours, verdict=verdict, seeds=(*seeds, found.seeds))


def _seconds(data: Data, row: Row, perplexity: str) -> dict[int, float]:
    """The logarithm of the time to a perplexity, seed by seed."""
    bound, found = math.log(float(perplexity)), {}
    for run in (run for run in data["curves"] if run["variant"] == row["variant"]):
        step = next((step for step, loss in run["validation"] if loss is not None and loss <= bound), None)
        found[run["seed"]] = math.inf if step is None else math.log(step * row["step_seconds"])
    return found


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    names = [row["variant"] for row in data["rows"]]
    named = [*STRONG, figures.OTHERS]
    strong = data | {"curves": [_aside(curve) for curve in data["curves"]]}
    over_steps = figures.over_steps(strong, named, width=340, height=240)
    seconds = {row["variant"]: row["step_seconds"] for row in data["rows"] if row["step_seconds"] is not None}
    fastest = min(seconds.values(), default=0.0)
    # fp32 would make the time axis twenty times as long, so it is left out.
    drawn = [c for c in data["curves"] if seconds.get(c["variant"], math.inf) < 4 * fastest]
    alt = drawing()
    if not drawn:
        return alt.hconcat(*over_steps)
    timed = [
        point | {"seconds": point["step"] * seconds[curve["variant"]]}
        for curve in drawn
        for point in figures.points([_aside(curve)])[0]
    ]
    axes: dict[str, Any] = {"x": "seconds", "x_title": "GPU seconds", "y": "perplexity", "names": named, "log": True}
    over_time = figures.lines(timed, y_title="validation perplexity", width=340, height=240, **axes)
    ends = figures.dots(data["rows"], names, x_title="final perplexity", width=340, height=240)
    top, bottom = alt.hconcat(over_steps[0], over_time).resolve_scale(y="shared"), alt.hconcat(over_steps[1], ends)
    return alt.vconcat(top, bottom.resolve_scale(color="independent", strokeDash="independent")).resolve_scale(
        color="independent", strokeDash="independent"
    )


def _aside(curve: Row) -> Row:
    """The same curve, moved to the grey ones where it would be one coloured line too many."""
    if curve["variant"] in STRONG:
        return curve
    return curve | {"variant": figures.OTHERS, "seed": f"{curve['variant']} {curve['seed']}"}


EXPERIMENT = Experiment(
    name="stabilizers",
    question="Which stabilizer is best at equal steps, and at equal GPU time?",
    method=(
        "The author's model on 16 sequences of 2,048 tokens per step, at 5 times the author's learning rate, where the "
        "effect shows within minutes. All variants use the same kernel and bf16, except plain-flash (PyTorch's "
        "FlashAttention, in a model that is not compiled) and plain-fp32. Step times come from `--time-steps`, with "
        "each variant alone on the GPU; runs that share it are not used for timing. The published plain-flash run took "
        "its logits from our kernel on the same inputs; today it reads none."
    ),
    cost="H200: about 12 minutes per seed, seven at a time, and 4 for --time-steps; CPU --quick: two minutes",
    caption=(
        "Validation perplexity over steps and over GPU time (without fp32), largest |logit| over steps, and the final "
        "perplexity of every variant with a dot for each seed. Bands and thin lines show seeds; plain-fp32 has 1,000 "
        "steps, the others 2,400. Variants that are not named are grey."
    ),
    claims={
        "quality": Claim(
            text="LS-attention against QK-norm: perplexity",
            paper="about 38 vs about 112 (nearly 2/5)",
            rule="ratio of final perplexities at equal steps, the whole paired interval: holds if LS is at most 0.5 of "
            "QK-norm (head), partly if below 0.98",
            judge=quality,
        ),
        "time": Claim(
            text="GPU hours to equal perplexity, against a second method (most likely full-precision attention)",
            paper="1/20",
            rule="GPU time to the lowest listed perplexity that LS and plain-fp32 both reach, the whole paired "
            "interval: holds if LS takes at most 1/10, partly if less than 1/2",
            judge=time,
        ),
        "logits": Claim(
            text="largest |logit| in a short run, LS against plain",
            paper="< 50 vs > 200",
            rule=f"{comparison.LOGITS_RULE}: holds if both, partly if one",
            judge=logits,
        ),
        "global": Claim(
            text="without a global head perplexity is worse",
            paper="about 36 -> about 42",
            rule="ratio of final perplexities at equal steps, the whole paired interval: holds if LS is at most 0.93 "
            "of all-local, partly if below 0.995",
            judge=needs_global,
        ),
        "layers": Claim(
            text="LS-attention is ahead of layer-wise windows, which have twice as many global heads here",
            paper="does not compare with them",
            rule="final losses at equal steps over the seeds that both have: holds if LS is lower in the whole paired "
            "interval; written after the runs",
            judge=layers,
        ),
    },
    collect=collect,
    table=tables.losses,
    more=time_table,
    figure=figure,
    variants=variants,
    settings={"optimizer.lr": 3e-3},
    steps=4000,
)
