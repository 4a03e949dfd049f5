"""LaS attention on language modelling: what its decay and its smoothing do to the perplexity of books."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures
from experiments.engine.measures import Outcome
from experiments.engine.recipe import Arms, Claim, Finding, Recipe, Summary, verdict_of
from longshort.train import TrainConfig
from longshort.train.variants import LAS_WIDTH, VARIANTS

NARROW = (2, 3)
"""Widths of LS's smoothing beside the one that all smoothed variants have."""
MARGIN = 0.01
"""Nats: a smaller difference of losses counts as none."""
SMOOTHED = {"plain": "smoothing-only", "decay-only": "las", "ls": "ls-smooth"}
DECAYED = {"plain": "decay-only", "smoothing-only": "las"}
LADDER = {1: "ls", **{width: f"ls-smooth-{width}" for width in NARROW}, LAS_WIDTH: "ls-smooth"}
"""The arms of LS by the width of their smoothing."""
PLACES: dict[str, tuple[str, int]] = {
    **{name: (name, 1) for name in SMOOTHED},
    **{smoothed: (name, LAS_WIDTH) for name, smoothed in SMOOTHED.items()},
    **{name: ("ls", width) for width, name in LADDER.items()},
}
"""Each arm as an attention and a width; 1 is no smoothing."""
NAMES = tuple(PLACES)

Losses = Mapping[str, Mapping[int, float]]
"""Final validation loss by arm and seed, where it is finite."""


def arms(base: TrainConfig) -> Arms:
    """Plain, decaying and LS-attention with and without smoothing; LS also with narrower ones."""
    found = {name: VARIANTS[name](base) for name in NAMES if name in VARIANTS}
    smooth = found["ls-smooth"]
    found |= {LADDER[width]: replace(smooth, model=replace(smooth.model, smoothing=width)) for width in NARROW}
    return {name: found[name] for name in NAMES}


def summarise(folder: Path) -> Summary:
    """Losses of every arm, and what smoothing and decay add to them, seed by seed."""
    found = measures.outcomes(folder)
    grouped = measures.by_arm(found, NAMES)
    rows = [measures.row(name, runs) | _place(name) for name, runs in grouped.items()]
    losses = {name: _finite(runs) for name, runs in grouped.items()}
    data = {
        "provenance": measures.provenance(found, folder),
        "rows": rows,
        "smoothing_adds": _added(losses, SMOOTHED.items()),
        "decay_adds": _added(losses, DECAYED.items()),
        "curves": [measures.curves(name, outcome) for name, runs in grouped.items() for outcome in runs],
    }
    table = f"{_table(data)}\n{measures.standard_table(rows)}"
    return Summary(data=data, table=table, sentences=_sentences(data, losses), findings=_findings(data, losses))


def _place(name: str) -> dict[str, Any]:
    attention, width = PLACES[name]
    return {"attention": attention, "width": width}


def _finite(runs: Sequence[Outcome]) -> dict[int, float]:
    finals = {outcome.run.seed: outcome.run.final_loss for outcome in runs}
    return {seed: loss for seed, loss in finals.items() if loss is not None}


def _added(losses: Losses, pairs: Any) -> list[dict[str, Any]]:
    """Nats by which the second arm of a pair is above the first, over the seeds that both have."""
    found = []
    for without, with_it in pairs:
        common = sorted(losses.get(without, {}).keys() & losses.get(with_it, {}).keys())
        if common:
            nats = [losses[with_it][seed] - losses[without][seed] for seed in common]
            found.append({"without": without, "with": with_it, "nats": statistics.fmean(nats), "by_seed": nats})
    return found


def _is_worse(pair: Mapping[str, Any]) -> bool:
    """By more than the margin in the mean, and at every seed at all."""
    return pair["nats"] > MARGIN and min(pair["by_seed"]) > 0


def _table(data: Mapping[str, Any]) -> str:
    pairs = [(name, pair) for name in ("smoothing", "decay") for pair in data[f"{name}_adds"]]
    header = ("what is added", "to", "nats", "lowest and highest", "seeds")
    lines = [
        (
            name,
            pair["without"],
            f"{pair['nats']:+.4f}",
            f"{min(pair['by_seed']):+.4f} to {max(pair['by_seed']):+.4f}" if len(pair["by_seed"]) > 1 else "",
            len(pair["by_seed"]),
        )
        for name, pair in pairs
    ]
    return measures.markdown(header, lines)


def _sentences(data: Mapping[str, Any], losses: Losses) -> tuple[str, ...]:
    said = []
    for name, what in (("smoothing", f"Smoothing over {LAS_WIDTH} keys"), ("decay", "Decay")):
        pairs = data[f"{name}_adds"]
        if pairs:
            listed = ", ".join(f"{pair['nats']:+.4f} nats to {pair['without']}" for pair in pairs)
            said.append(f"{what} adds {listed}.")
    ladder = _ladder(losses)
    if len(ladder) > 1:
        listed = ", ".join(f"{loss:.4f} at width {width}" for width, loss in ladder.items())
        said.append(f"Validation loss of LS by the width of its smoothing: {listed} (1 is none).")
    return tuple(said) or ("No arm has both its forms yet.",)


def _ladder(losses: Losses) -> dict[int, float]:
    """The loss of LS by width, over the seeds that all its arms have."""
    own = {width: losses[arm] for width, arm in LADDER.items() if losses.get(arm)}
    common = set.intersection(*(set(by_seed) for by_seed in own.values())) if own else set()
    return {width: statistics.fmean(by_seed[seed] for seed in common) for width, by_seed in own.items() if common}


def _findings(data: Mapping[str, Any], losses: Losses) -> dict[str, Finding]:
    found = {}
    for key, name, expected in (("smoothing", "smoothing", SMOOTHED), ("decay", "decay", DECAYED)):
        pairs = data[f"{name}_adds"]
        if len(pairs) == len(expected):
            ours = ", ".join(f"{pair['nats']:+.4f} nats on {pair['without']}" for pair in pairs)
            worse = [_is_worse(pair) for pair in pairs]
            cases = worse if key == "smoothing" else [not case for case in worse]
            found[key] = Finding(ours=ours, verdict=verdict_of(cases))
    ladder = _ladder(losses)
    if len(ladder) == len(LADDER):
        steps = list(ladder.values())
        ours = ", ".join(f"{loss:.4f} at {width}" for width, loss in ladder.items())
        rises = [wider > narrower for narrower, wider in itertools.pairwise(steps)]
        found["width"] = Finding(ours=ours, verdict=verdict_of(rises))
    return found


def figure(data: dict[str, Any]) -> Any:
    """Validation perplexity over steps, and the final loss against the width of the smoothing."""
    from longshort.report.charts import drawing

    perplexities, _ = figures.points(data["curves"])
    names = [row["arm"] for row in data["rows"]]
    over_steps: dict[str, Any] = {"x": "step", "x_title": "step", "y": "perplexity", "y_title": "validation perplexity"}
    rows = sorted(data["rows"], key=lambda row: int(row["width"]))
    places = [{"series": r["attention"], "detail": "", "width": r["width"], "loss": r["final_loss"]} for r in rows]
    by_width: dict[str, Any] = {"x": "width", "x_title": "width of the smoothing (1: none)"}
    by_width |= {"y": "loss", "y_title": "final validation loss"}
    return (
        drawing()
        .hconcat(
            figures.lines(perplexities, names=names, log=True, width=420, height=300, **over_steps),
            figures.lines(places, names=tuple(SMOOTHED), points=True, height=300, **by_width),
        )
        .resolve_scale(color="independent", strokeDash="independent")
    )


RECIPE = Recipe(
    name="las-books",
    question="What do LaS attention's decay and smoothing do to the perplexity of books?",
    method=(
        "The author's model of arXiv 2505.15548 at his learning rate, rows of 2,048 tokens, 16 rows a step, short "
        "runs. plain, decay-only (B 0.001) and LS-attention (1 global head, window 50), each with and without LaS's "
        f"smoothing in its one-sided form over {LAS_WIDTH} keys; LS also over 2 and 3. Arms of a seed meet the same "
        "batches, so differences are taken seed by seed."
    ),
    cost="H200: about 6 minutes a seed, eight at a time; CPU --quick: a minute",
    claims={
        "smoothing": Claim(
            text="smoothing the attention hurts perplexity on text",
            paper="reported of LaS (arXiv 2311.16620); its numbers are unknown to us",
            rule="final validation loss of smoothing-only, las and ls-smooth above plain, decay-only and ls by more "
            f"than {MARGIN} nats in the mean over seeds, and above it at each seed: holds for all three, partly for "
            "some",
        ),
        "decay": Claim(
            text="LaS's decay does not hurt it",
            paper="not reported in what we could read",
            rule=f"decay-only and las not above plain and smoothing-only by more than {MARGIN} nats in the mean and at "
            "each seed: holds for both, partly for one",
        ),
        "width": Claim(
            text="wider smoothing hurts more",
            paper="not reported in what we could read",
            rule="mean loss of LS at widths 1 (none), 2, 3 and 5: holds if each is above the one before, partly if "
            "some are",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    steps=4000,
)
