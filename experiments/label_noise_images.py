"""Does the e-exponentiated loss help convolutional networks under wrong labels, when every loss has its own rate?

`label-noise` trains small models on few points and tunes nothing. Here all of MNIST and of CIFAR-10 in grey are used,
and what a person would tune is tuned for each loss: the learning rate, and the exponent, on validation data as noisy as
the training data. `label_noise.tuned` makes the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from experiments.engine import measures, tables
from experiments.engine.evidence import Interval, interval, verdict_of
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Experiment, Finding
from experiments.label_noise import by_majority, panels, points, shown, spread
from experiments.label_noise.losses import BASE
from experiments.label_noise.tuned import ENDS, PICTURES, ROBUST, SEARCH, SETTINGS, SHARES, measure, read_all
from longshort.runs import RunError

NAME = "label-noise-images"
NEAR = 0.01
"""Comparable: at most one point behind."""
JUDGED = tuple(rival for rival in ROBUST if rival != "bootstrap")
"""Bootstrap hardly differs from cross-entropy in `label-noise`: to be as good as that says little."""
CASES = len(PICTURES) * sum(share > 0 for share in SHARES)
WORDS = {"last": "", "stopped": ", stopped early"}

Result = dict[str, Any]
"""One data set at one share of wrong labels; accuracies [end][loss][seed]."""


def collect(folder: Path) -> Data:
    """Means and spreads over seeds, the chosen rates, and every accuracy."""
    results = read_all(folder)
    if not results:
        raise RunError(f"{folder} holds no results; run `python -m experiments {NAME}` first")
    for key in ("settings", "seeds"):
        if any(result[key] != results[0][key] for result in results):
            raise RunError(f"{folder}: holds results with different {key}; run the same command again for all of them")
    made = {
        "commands": measures.commands(folder),
        "wall_clock_seconds": {_name(result): result["seconds"] for result in results},
        "machine": results[0]["machine"],
        "seeds": results[0]["seeds"],
        "settings": results[0]["settings"],
        "sizes": {result["dataset"]: result["sizes"] for result in results},
    }
    return {"provenance": made, "rows": [row for result in results for row in _rows(result)], "results": results}


def _name(result: Result) -> str:
    return f"{result['dataset']} {result['share']:.0%}"


def _rows(result: Result) -> list[Row]:
    """One row per loss."""
    place = {key: result[key] for key in ("dataset", "model", "share")}
    place["kind"] = "symmetric" if result["share"] else "clean"
    rows = []
    for loss in result["last"]:
        row = place | {"loss": loss}
        for end in ENDS:
            row |= spread(end, result[end][loss]) | {f"{end}_rate": result["chosen_rates"][end][loss]}
        rows.append(row)
    return rows


def table(data: Data) -> str:
    found = {result["dataset"]: None for result in data["results"]}
    return "\n".join(_table(dataset, data) for dataset in found)


def _table(dataset: str, data: Data) -> str:
    results = [result for result in data["results"] if result["dataset"] == dataset]
    cells = {(row["loss"], row["share"]): row for row in data["rows"] if row["dataset"] == dataset}
    seeds = len(results[0]["seeds"])
    lines: list[tuple[object, ...]] = []
    for loss in results[0]["last"]:
        for end in ENDS:
            found = [cells[loss, result["share"]] for result in results]
            lines.append((loss + WORDS[end], seeds, *(f"{shown(v, end)} ({v[f'{end}_rate']:g})" for v in found)))
    for end in ENDS:
        lines.append((f"chosen exponent{WORDS[end]}", "", *(result["chosen_exponents"][end] for result in results)))
    header = ("loss", "seeds", *(f"{result['share']:.0%} wrong" for result in results))
    title = f"{dataset}: test accuracy in per cent (mean ± standard deviation), and the learning rate"
    return f"## {title}\n\n{tables.markdown(header, lines)}"


def _noisy(data: Data) -> list[Result] | None:
    """The cases of the claims; None before all have run."""
    found = [result for result in data["results"] if result["share"] > 0]
    return found if len(found) == CASES else None


def against_base(data: Data, *, end: str) -> Finding | None:
    """The chosen exponent against cross-entropy, case by case."""
    cases = _noisy(data)
    if cases is None:
        return None
    pairs, words = [], []
    for result in cases:
        mine = result["chosen_exponents"][end]
        pairs.append((result[end][mine], result[end][BASE]))
        words.append(f"{_name(result)} {points(*pairs[-1])} ({mine})")
    return by_majority(data, pairs, words)


def against_robust(data: Data, *, end: str) -> Finding | None:
    """The chosen exponent against each of the other robust losses: is it near one of them?"""
    cases = _noisy(data)
    if cases is None:
        return None
    near, words = [], []
    for result in cases:
        mine = result["chosen_exponents"][end]
        found = {rival: _difference(result[end][mine], result[end][rival]) for rival in JUDGED}
        states = [difference.is_at_least(-NEAR) for difference in found.values()]
        near.append(True if True in states else None if None in states else False)
        rival = max(found, key=lambda name: found[name].low)
        words.append(f"{_name(result)} {points(result[end][mine], result[end][rival])} ({mine} against {rival})")
    ours = f"comparable in {near.count(True)}, not in {near.count(False)} of {len(near)}: {', '.join(words)}"
    seeds = tuple(len(result["seeds"]) for result in cases)
    return Finding(ours=ours, verdict=verdict_of(near), seeds=seeds)


def _difference(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Seed by seed."""
    return interval([a - b for a, b in zip(mine, theirs, strict=True)])


def figure(data: Data) -> Any:
    return panels(data, [("symmetric", end) for end in ENDS], ("last epoch", "stopped early"), width=330, height=230)


_PAPER = (
    "arXiv 1902.06127: accuracy under label noise can be significantly better than with the original loss and "
    "comparable to that of some other methods"
)
_CASES = "at 20, 40 and 60 % wrong labels on both data sets"


def _claims(end: str, words: str) -> dict[str, Claim]:
    return {
        f"base-{end}": Claim(
            text=f"tuned, e below 1 is more accurate than cross-entropy under label noise, {words}",
            paper=_PAPER,
            rule=f"{_CASES}, {words}, with the exponent and the rates chosen on noisy validation data, where a "
            "difference counts if the paired 95 % interval excludes 0: holds if better in all six, partly if better in "
            "more than worse; otherwise it does not hold, or is undecided if those that do not count could change that",
            judge=partial(against_base, end=end),
        ),
        f"robust-{end}": Claim(
            text=f"tuned, e below 1 is comparable to some other robust loss under label noise, {words}",
            paper=_PAPER,
            rule=f"{_CASES}, {words}, chosen in the same way: comparable if, against generalised CE or "
            "symmetric CE, the whole paired 95 % interval is at most one point below; not if all of it is further "
            "below against both; holds if comparable in all six, partly if in some",
            judge=partial(against_robust, end=end),
        ),
    }


EXPERIMENT = Experiment(
    name=NAME,
    question="Does the e-exponentiated loss help convolutional networks under wrong labels, each loss at its own rate?",
    method=(
        "All of MNIST and of CIFAR-10 in grey. Each seed keeps 5,000 of the training images for validation; symmetric "
        "noise moves a label of both parts to any other class, and the 10,000 test images stay clean. The network has "
        "three convolutions (4 x 4, 3 x 3, 3 x 3, each at every second place, with 16, 32 and 64 channels), a hidden "
        f"layer of 128 and no norms, and trains by Adam at a constant rate for {SETTINGS.epochs} epochs with "
        f"{SETTINGS.batch} images per step, without augmentation; on a GPU convolutions and hidden layer are computed "
        "in bf16, scores and losses in fp32. The losses are those of `label-noise`, with the same settings. For each "
        f"data set, share of wrong labels and loss, the rate is the best of {len(SEARCH.rates)} "
        f"({', '.join(f'{rate:g}' for rate in SEARCH.rates)}) by mean accuracy on noisy validation data of seeds "
        f"{' and '.join(map(str, SEARCH.seeds))}, which are not reported; in the same way one exponent of 0.25, 0.5 "
        "and 0.75 is chosen, and the claims are about that one. Both are chosen twice: for the last epoch, and for "
        "early stopping at the epoch of the highest noisy validation accuracy. Test images are used for nothing but "
        "the accuracies shown. The other robust losses keep the settings of their papers, so that the exponent, and "
        "nothing else beside the rates, is tuned. The rules were written before any run."
    ),
    cost=(
        "H200: 9 minutes for --seeds 0,1,2,3,4 and both data sets, part of it beside other work; CPU --quick: seconds"
    ),
    caption=(
        "Test accuracy against the share of wrong labels, with one row per data set: at the last epoch and stopped "
        "early, each loss at the rate chosen for that; means and standard deviations over seeds. Bootstrap is grey."
    ),
    claims=_claims("last", "at the last epoch") | _claims("stopped", "with early stopping"),
    collect=collect,
    table=table,
    figure=figure,
    measure=measure,
)
