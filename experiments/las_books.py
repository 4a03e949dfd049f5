"""What do LaS attention's decay and smoothing do to the perplexity of books?

LaS attention (arXiv 2311.16620) is meant for long-range tasks; on text its smoothing is said to hurt. Plain, decaying
and LS-attention are trained on books with and without its smoothing, and LS-attention with narrower smoothing too.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import interval, verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import LAS_WIDTH, VARIANTS

NARROW = (2, 3)
"""Widths of LS's smoothing, beside the one that all smoothed variants share."""
MARGIN = 0.01
"""Nats: a smaller difference in loss counts as none."""
SMOOTHED = {"plain": "smoothing-only", "decay-only": "las", "ls": "ls-smooth"}
DECAYED = {"plain": "decay-only", "smoothing-only": "las"}
LADDER = {1: "ls", **{width: f"ls-smooth-{width}" for width in NARROW}, LAS_WIDTH: "ls-smooth"}
"""The variants of LS, by the width of their smoothing."""
PLACES: dict[str, tuple[str, int]] = {
    **{name: (name, 1) for name in SMOOTHED},
    **{smoothed: (name, LAS_WIDTH) for name, smoothed in SMOOTHED.items()},
    **{name: ("ls", width) for width, name in LADDER.items()},
}
"""Each variant's attention and width of smoothing; 1 is none."""
NAMES = tuple(PLACES)


def variants(base: TrainConfig) -> Variants:
    """Plain, decaying and LS-attention with and without smoothing; LS also with narrower smoothing."""
    found = {name: VARIANTS[name](base) for name in NAMES if name in VARIANTS}
    smooth = found["ls-smooth"]
    found |= {LADDER[width]: replace(smooth, model=replace(smooth.model, smoothing=width)) for width in NARROW}
    return {name: found[name] for name in NAMES}


def collect(folder: Path) -> Data:
    return measures.data_of(measures.outcomes(folder), folder, NAMES, parts=_parts)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    attention, width = PLACES[variant]
    return {"attention": attention, "width": width}


def added(data: Data, pairs: Mapping[str, str]) -> dict[str, list[float]]:
    """For each pair, by the name of its first variant: by how many nats the second is above it, seed by seed."""
    losses = {row["variant"]: comparison.losses_by_seed(row) for row in data["rows"]}
    found = {}
    for without, with_it in pairs.items():
        common = sorted(losses.get(without, {}).keys() & losses.get(with_it, {}).keys())
        if common:
            found[without] = [losses[with_it][seed] - losses[without][seed] for seed in common]
    return found


def by_width(data: Data) -> dict[int, float]:
    """The loss of LS by the width of its smoothing, over the seeds that all its variants have."""
    rows = measures.by_name(data)
    own = {
        w: losses for w, name in LADDER.items() if name in rows and (losses := comparison.losses_by_seed(rows[name]))
    }
    common = set.intersection(*(set(losses) for losses in own.values())) if own else set()
    return {width: statistics.fmean(losses[seed] for seed in common) for width, losses in own.items() if common}


def table(data: Data) -> str:
    header = ("what is added", "to", "nats", "lowest and highest", "seeds")
    lines = [
        (
            what,
            without,
            f"{statistics.fmean(nats):+.4f}",
            f"{min(nats):+.4f} to {max(nats):+.4f}" if len(nats) > 1 else "",
            len(nats),
        )
        for what, pairs in (("smoothing", SMOOTHED), ("decay", DECAYED))
        for without, nats in added(data, pairs).items()
    ]
    return tables.markdown(header, lines)


def worse(data: Data, *, pairs: Mapping[str, str], hurts: bool) -> Finding | None:
    """The second of each pair against the first: if it `hurts`, it is worse by more than the margin, else it is not."""
    found = added(data, pairs)
    if len(found) < len(pairs):
        return None
    ours = ", ".join(f"{statistics.fmean(nats):+.4f} nats on {without}" for without, nats in found.items())
    cases = [interval(nats).is_above(MARGIN) for nats in found.values()]
    verdict = verdict_of([None if case is None else case == hurts for case in cases])
    return Finding(ours=ours, verdict=verdict, seeds=tuple(len(nats) for nats in found.values()))


def width(data: Data) -> Finding | None:
    losses = by_width(data)
    if len(losses) < len(LADDER):
        return None
    ours = ", ".join(f"{loss:.4f} at {width}" for width, loss in losses.items())
    rows = measures.by_name(data)
    places = [rows[name] for name in LADDER.values()]
    found = [comparison.difference(wider, narrower) for narrower, wider in itertools.pairwise(places)]
    rises = [None if one is None else one.is_above(MARGIN) for one in found]
    seeds = (*comparison.seeds_of(*places), *(one.seeds for one in found if one is not None))
    return Finding(ours=ours, verdict=verdict_of(rises), seeds=seeds)


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    perplexities, _ = figures.points(data["curves"])
    names = [name for name in (*SMOOTHED, *SMOOTHED.values()) if name in {row["variant"] for row in data["rows"]}]
    perplexities = [point for point in perplexities if point["series"] in names]
    over_steps: dict[str, Any] = {"x": "step", "x_title": "step", "y": "perplexity", "y_title": "validation perplexity"}
    rows = sorted(data["rows"], key=lambda row: int(row["width"]))
    places = [{"series": r["attention"], "detail": "", "width": r["width"], "loss": r["final_loss"]} for r in rows]
    axes: dict[str, Any] = {"x": "width", "x_title": "width of the smoothing (1: none)"}
    axes |= {"y": "loss", "y_title": "final validation loss"}
    return (
        drawing()
        .hconcat(
            figures.lines(perplexities, names=names, log=True, width=380, height=250, **over_steps),
            figures.lines(places, names=tuple(SMOOTHED), points=True, width=280, height=250, **axes),
        )
        .resolve_scale(color="independent", strokeDash="independent")
    )


EXPERIMENT = Experiment(
    name="las-books",
    question="What do LaS attention's decay and smoothing do to the perplexity of books?",
    method=(
        "The author's model of arXiv 2505.15548 at his learning rate, on 16 sequences of 2,048 tokens per step, in "
        "short runs: plain, decay-only (B 0.001) and LS-attention (1 global head, window 50), each with and without "
        f"the one-sided form of LaS's smoothing over {LAS_WIDTH} keys; LS also over 2 and 3. Variants with the same "
        "seed see the same batches, so differences are taken seed by seed."
    ),
    cost="H200: about 6 minutes per seed, eight at a time; CPU --quick: a minute",
    caption=(
        "Validation perplexity over steps (left), and the final loss of each attention against the width of its "
        "smoothing (right); one seed."
    ),
    claims={
        "smoothing": Claim(
            text="smoothing the attention hurts perplexity on text",
            paper="reported of LaS (arXiv 2311.16620); its numbers are unknown to us",
            rule="final validation loss of smoothing-only, las and ls-smooth higher than that of plain, decay-only and "
            f"ls, by more than {MARGIN} nats in the whole paired interval: holds if for all three, partly if for some",
            judge=partial(worse, pairs=SMOOTHED, hurts=True),
        ),
        "decay": Claim(
            text="LaS's decay does not hurt perplexity on text",
            paper="not reported in what we could read",
            rule=f"by the same measure ({MARGIN} nats, the whole paired interval): holds if decay-only is not worse "
            "than plain and las not worse than smoothing-only, partly if one of them is not",
            judge=partial(worse, pairs=DECAYED, hurts=False),
        ),
        "width": Claim(
            text="wider smoothing hurts more",
            paper="not reported in what we could read",
            rule=f"loss of LS at widths 1 (none), 2, 3 and 5: holds if each is more than {MARGIN} nats above the "
            "one before in the whole paired interval, partly if some are; first written without the margin",
            judge=width,
        ),
    },
    collect=collect,
    table=table,
    more=tables.losses,
    figure=figure,
    variants=variants,
    steps=4000,
)
