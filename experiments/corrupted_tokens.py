"""Does the e-exponentiated loss help a language model that is trained on corrupted text?

The loss of arXiv 1902.06127 damps points that a model is badly wrong about; tokens replaced at random are such points.
What counts is the perplexity of clean text. Training on corrupted text makes every model too unsure of clean text, and
a temperature fitted on held-out text corrects part of that for any loss, so every variant is also shown with one.

`python -m experiments.corrupted_tokens RUN/config.json` runs one training; it also writes the losses on clean text,
which need the trained model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import child, comparison, figures, measures, tables
from experiments.engine.evidence import Difference, majority, paired
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import shown
from longshort.train import TrainConfig, load_model
from longshort.train.evaluation.calibration import calibrated_losses
from longshort.train.machine.distributed import choose_device
from longshort.train.sweeps.processes import named_config
from longshort.train.text import TextData

SHARES = (0.0, 0.1, 0.2, 0.3)
EXPONENTS = (1.0, 0.9, 0.75, 0.5)
MARGIN = 0.01
"""Nats: a smaller difference in loss counts as none."""
READINGS = {
    "loss": "softmax(h(s))",
    "scores_loss": "softmax(s / T)",
    "transformed_loss": "softmax(h(s) / T)",
}


def named(exponent: float, share: float) -> str:
    """The name of a variant.

    >>> named(1.0, 0.0), named(0.5, 0.3)
    ('base-clean', 'e0.5-corrupt30')
    """
    loss = "base" if exponent == 1 else f"e{exponent:g}"
    return f"{loss}-{'clean' if share == 0 else f'corrupt{100 * share:.0f}'}"


NAMES = tuple(named(exponent, share) for share in SHARES for exponent in EXPONENTS)


def variants(base: TrainConfig) -> Variants:
    """Each exponent on each text."""
    return {
        named(exponent, share): replace(
            base,
            model=replace(base.model, loss=replace(base.loss, exponent=exponent)),
            data=replace(base.data, corruption=share),
        )
        for share in SHARES
        for exponent in EXPONENTS
    }


def clean_losses(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Losses of the trained model on clean validation text, as trained and with a fitted temperature."""
    device, run = choose_device(config.run.device), config.run
    model, _ = load_model(out, device)
    stream = TextData.open(config).stream("validation", seed=0)
    options: dict[str, Any] = {"batches": run.eval_batches, "device": device, "precision": run.precision}
    return {"clean": calibrated_losses(model, stream, **options)}


def collect(folder: Path) -> Data:
    """Losses on clean text by variant: as trained, and with a fitted temperature."""
    return measures.data_of(measures.outcomes(folder), folder, NAMES, parts=_parts, curve=None)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    config = runs[0].run.config
    clean = [outcome.after["clean"] for outcome in runs if "clean" in outcome.after]
    means = {f"clean_{key}": sum(c[key] for c in clean) / len(clean) if clean else None for key in READINGS}
    by_seed = {key: [c[key] for c in clean] for key in READINGS} if len(clean) == len(runs) else {}
    place = {"exponent": config["loss"]["exponent"], "corruption": config["data"]["corruption"]}
    return place | means | {"clean_losses": by_seed}


def table(data: Data) -> str:
    header = ("variant", "e", "corrupted", "seeds", *(f"perplexity, {name}" for name in READINGS.values()))
    lines = [
        (row["variant"], f"{row['exponent']:g}", f"{row['corruption']:.0%}", len(row["seeds"]), *_perplexities(row))
        for row in data["rows"]
    ]
    return (
        "Perplexity of clean validation text. h is the transform that the variant was trained with, T a temperature "
        f"fitted on other validation text.\n\n{tables.markdown(header, lines)}"
    )


def _perplexities(row: Row) -> list[str]:
    values = [measures.perplexity(row[f"clean_{key}"]) for key in READINGS]
    return ["not measured" if value is None else shown(value) for value in values]


def gains(data: Data) -> dict[float, Difference]:
    """For each share of corrupted tokens, how many nats the best exponent below 1 gains over the base, each variant at
    its best reading; the best by their means over seeds.
    """
    found = {}
    for share in SHARES:
        at = {}
        for row in data["rows"]:
            losses = {key: row[f"clean_{key}"] for key in READINGS if row[f"clean_{key}"] is not None}
            if row["corruption"] == share and losses:
                reading = min(losses, key=lambda key: losses[key])
                at[row["exponent"]] = losses[reading], _by_seed(row, reading)
        others = {e: of for e, of in at.items() if e < 1 and math.isfinite(of[0])}
        if others and 1.0 in at and math.isfinite(at[1.0][0]):
            gain = paired(at[1.0][1], min(others.values(), key=lambda of: of[0])[1])
            if gain is not None:
                found[share] = gain
    return found


def _by_seed(row: Row, reading: str) -> dict[int, float]:
    """Losses on clean text by seed; data of earlier versions have them only for variants with a single seed."""
    losses = row.get("clean_losses", {}).get(reading, [row[f"clean_{reading}"]] * (len(row["seeds"]) == 1))
    return dict(zip(row["seeds"], losses, strict=False))


def clean_text(data: Data) -> Finding | None:
    found = {share: gain for share, gain in gains(data).items() if share > 0}
    if len(found) < len(SHARES) - 1:
        return None
    signs = [(gain.low > MARGIN) - (gain.high < -MARGIN) for gain in found.values()]
    words = ", ".join(f"{share:.0%} {gain.mean:+.4f} nats" for share, gain in found.items())
    seeds = comparison.seeds_of(*(row for row in data["rows"] if row["corruption"] in found))
    seeds = (*seeds, *(gain.seeds for gain in found.values()))
    return Finding(ours=f"gain over the base at {words}", verdict=majority(signs), seeds=seeds)


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    def series(exponent: float) -> str:
        return "base" if exponent == 1 else f"e {exponent:g}"

    by_reading = {
        title: [
            {
                "series": series(row["exponent"]),
                "detail": "",
                "share": 100 * row["corruption"],
                "perplexity": measures.perplexity(row[f"clean_{key}"]),
            }
            for row in data["rows"]
        ]
        for key, title in READINGS.items()
    }
    every = [point for points in by_reading.values() for point in points]
    panels = []
    for title, points in by_reading.items():
        axes: dict[str, Any] = {"x_title": "corrupted tokens, per cent", "y_title": "perplexity of clean text"}
        axes |= {"x": "share", "y": "perplexity", "names": [series(e) for e in EXPONENTS], "beside": every}
        panels.append(figures.lines(points, title=title, points=True, log=True, ordered=True, width=225, **axes))
    return drawing().hconcat(*panels).resolve_scale(y="shared")


EXPERIMENT = Experiment(
    name="corrupted-tokens",
    question="Does the e-exponentiated loss help a language model that is trained on corrupted text?",
    method=(
        "The author's LS-attention model (arXiv 2505.15548) at a constant learning rate of 6e-4. A share of the "
        "training tokens is replaced by random ones, the same in every epoch, in inputs and targets alike; validation "
        "text is clean. The loss of arXiv 1902.06127, inside the chunked cross-entropy with c = 0.01, is compared with "
        "plain cross-entropy. Weight decay is 0.1 in every variant. Temperatures are fitted on a validation batch that "
        "is not part of the reported losses."
    ),
    cost="H200: about 8 minutes for one seed, six at a time; CPU --quick: two minutes",
    caption=(
        "Perplexity of clean text against the share of corrupted training tokens, by exponent, with a panel for each "
        "reading; one seed."
    ),
    claims={
        "clean-text": Claim(
            text="the e-exponentiated loss gives lower perplexity on clean text after training on corrupted text",
            paper="arXiv 1902.06127 has no language model in what we could read",
            rule="at 10, 20 and 30 %, by the best exponent and each variant's best reading: holds if more than "
            f"{MARGIN} nats below the base at each, in the whole paired interval; partly if so far below it at more of "
            "them than above it, undecided if those in between could change that",
            judge=clean_text,
        ),
    },
    collect=collect,
    table=table,
    more=tables.losses,
    figure=figure,
    variants=variants,
    steps=2500,
    process="experiments.corrupted_tokens",
)

if __name__ == "__main__":
    child.train_and_look(named_config(), also=clean_losses)
