"""Language modelling on text with random tokens in it: the e-exponentiated loss against plain cross-entropy.

What counts is the perplexity of clean text. Training on corrupted text makes every model too unsure of clean text, and
a temperature fitted on held-out text mends part of that for any loss; so every arm is shown with one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import figures, measures
from experiments.engine.recipe import FAILS, HOLDS, PARTLY, Arms, Claim, Finding, Recipe, Summary
from longshort.train import TrainConfig

SHARES = (0.0, 0.1, 0.2, 0.3)
EXPONENTS = (1.0, 0.9, 0.75, 0.5)
MARGIN = 0.01
"""Nats: a smaller difference of losses counts as none."""
READINGS = {
    "loss": "softmax(h(s))",
    "scores_loss": "softmax(s / T)",
    "transformed_loss": "softmax(h(s) / T)",
}


def arm_name(exponent: float, share: float) -> str:
    """
    >>> arm_name(1.0, 0.0), arm_name(0.5, 0.3)
    ('base-clean', 'e0.5-corrupt30')
    """
    loss = "base" if exponent == 1 else f"e{exponent:g}"
    return f"{loss}-{'clean' if share == 0 else f'corrupt{100 * share:.0f}'}"


NAMES = tuple(arm_name(exponent, share) for share in SHARES for exponent in EXPONENTS)


def arms(base: TrainConfig) -> Arms:
    """Each exponent on each text."""
    return {
        arm_name(exponent, share): replace(
            base,
            model=replace(base.model, loss=replace(base.loss, exponent=exponent)),
            data=replace(base.data, corruption=share),
        )
        for share in SHARES
        for exponent in EXPONENTS
    }


def summarise(folder: Path) -> Summary:
    """Losses on clean text by arm: as trained, and by a fitted temperature."""
    found = measures.outcomes(folder)
    rows = []
    for name, runs in measures.by_arm(found, NAMES).items():
        config = runs[0].run.config
        row = measures.row(name, runs)
        row |= {"exponent": config["loss"]["exponent"], "corruption": config["data"]["corruption"]}
        clean = [outcome.after["clean"] for outcome in runs if "clean" in outcome.after]
        for key in READINGS:
            row[f"clean_{key}"] = sum(c[key] for c in clean) / len(clean) if clean else None
        rows.append(row)
    data = {"provenance": measures.provenance(found, folder), "rows": rows}
    return Summary(data=data, table=_table(rows), sentences=_sentences(rows), findings=_findings(rows))


def _table(rows: Sequence[dict[str, Any]]) -> str:
    header = ("arm", "e", "corrupted", "seeds", *(f"perplexity, {name}" for name in READINGS.values()))
    cells = [
        (row["arm"], f"{row['exponent']:g}", f"{row['corruption']:.0%}", len(row["seeds"]), *_perplexities(row))
        for row in rows
    ]
    return (
        "Perplexity of clean validation text. h is the transform that the arm was trained with, T a temperature fitted "
        f"on other validation text.\n\n{measures.markdown(header, cells)}\n{measures.standard_table(rows)}"
    )


def _perplexities(row: dict[str, Any]) -> list[str]:
    losses = [row[f"clean_{key}"] for key in READINGS]
    return ["not measured" if loss is None else measures.shown(math.exp(min(loss, 700.0))) for loss in losses]


def _best(row: dict[str, Any]) -> float:
    """The lowest of the readings: each arm may have its temperature."""
    losses = [row[f"clean_{key}"] for key in READINGS]
    return min((loss for loss in losses if loss is not None), default=math.inf)


def _gains(rows: Sequence[dict[str, Any]]) -> dict[float, tuple[float, float]]:
    """At each share of corrupted tokens: the best exponent below 1, and how many nats it gains on the base."""
    gains = {}
    for share in SHARES:
        at = {row["exponent"]: _best(row) for row in rows if row["corruption"] == share}
        others = {e: loss for e, loss in at.items() if e < 1 and math.isfinite(loss)}
        if others and math.isfinite(at.get(1.0, math.inf)):
            best = min(others, key=lambda e: others[e])
            gains[share] = (best, at[1.0] - others[best])
    return gains


def _sentences(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    gains = _gains(rows)
    if not gains:
        return ("No share of corrupted tokens has both the base and an exponent below 1 yet.",)
    said = [
        f"{share:.0%} corrupted: the best exponent below 1 is {e:g}, {abs(gain):.4f} nats "
        f"{'below' if gain > 0 else 'above'} the base"
        for share, (e, gain) in gains.items()
    ]
    return (f"Clean text, each arm by its best reading: {'; '.join(said)}.",)


def _findings(rows: Sequence[dict[str, Any]]) -> dict[str, Finding]:
    gains = {share: gain for share, (_, gain) in _gains(rows).items() if share > 0}
    if len(gains) < len(SHARES) - 1:
        return {}
    better, worse = (sum(sign * gain > MARGIN for gain in gains.values()) for sign in (1, -1))
    verdict = HOLDS if better == len(gains) else PARTLY if better > worse else FAILS
    words = ", ".join(f"{share:.0%} {gain:+.4f} nats" for share, gain in gains.items())
    return {"clean-text": Finding(ours=f"gain on the base at {words}", verdict=verdict)}


def figure(data: dict[str, Any]) -> Any:
    """Perplexity of clean text against the share of corrupted tokens, by reading."""
    from longshort.report.charts import drawing

    names = ["base" if e == 1 else f"e {e:g}" for e in EXPONENTS]
    panels = []
    for key, title in READINGS.items():
        points = [
            {
                "series": "base" if row["exponent"] == 1 else f"e {row['exponent']:g}",
                "detail": "",
                "share": 100 * row["corruption"],
                "perplexity": None if row[f"clean_{key}"] is None else math.exp(min(row[f"clean_{key}"], 700.0)),
            }
            for row in data["rows"]
        ]
        axes: dict[str, Any] = {"x_title": "corrupted tokens, per cent", "y_title": "perplexity of clean text"}
        options: dict[str, Any] = {"x": "share", "y": "perplexity", "names": names, "points": True, "log": True, **axes}
        panels.append(figures.lines(points, title=title, **options))
    return drawing().hconcat(*panels)


RECIPE = Recipe(
    name="corrupted-tokens",
    question="Does the e-exponentiated loss help a language model that is trained on corrupted text?",
    method=(
        "The author's LS-attention model (arXiv 2505.15548), constant learning rate 6e-4; a share of the training "
        "tokens is replaced by random ones, the same in every epoch, inputs and targets alike. Validation text is "
        "clean. The loss of arXiv 1902.06127 inside the chunked cross-entropy, c = 0.01, against plain cross-entropy; "
        "weight decay 0.1 in every arm. Temperatures are fitted on a validation batch that is not reported."
    ),
    cost="H200: about 8 minutes for one seed, six at a time; CPU --quick: two minutes",
    claims={
        "clean-text": Claim(
            text="the e-exponentiated loss gives lower perplexity on clean text after training on corrupted text",
            paper="arXiv 1902.06127 has no language model in what we could read",
            rule=f"best exponent and best reading of each arm at 10, 20 and 30 %: holds if more than {MARGIN} nats "
            "below the base at each; partly if at more than it is above",
        ),
    },
    summarise=summarise,
    figure=figure,
    arms=arms,
    steps=2500,
)
