"""Do plain attention's logits explode where LS-attention's stay small? The paper's figure 1.

The paper trains plain attention until its logits grow without bound and the loss diverges, and shows that LS-attention
(one global head, the rest local) does not. Here both train at the author's learning rate and at 5 and 16 times that
rate, where the logits grow sooner. The trained models are examined too: the paper assumes that far dependencies are
sparse, and where the global heads of a trained model attend shows whether they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.base import AUTHOR_LR
from experiments.engine.evidence import verdict_of
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from experiments.engine.tables import shown
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

RATES = tuple(round(factor * AUTHOR_LR, 6) for factor in (1, 5, 16))
"""The author's learning rate, and 5 and 16 times that."""
KINDS = ("plain", "ls")
SPARSE_KEYS, SPARSE_SHARE = 20.0, 0.5
SEEN = ("near_mass", "far_keys", "far_noticed", "logit_rank", "attention_rank")
"""What is taken from the `anatomy` of a trained model."""


def at_rate(kind: str, rate: float) -> str:
    """The name of a variant.

    >>> at_rate("plain", 0.0006), at_rate("ls", 0.0096)
    ('plain-6e-4', 'ls-9.6e-3')
    """
    return f"{kind}-{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")


NAMES = tuple(at_rate(kind, rate) for rate in RATES for kind in KINDS)


def variants(base: TrainConfig, kinds: Sequence[str] = KINDS, rates: Sequence[float] = RATES) -> Variants:
    """Each kind of attention at each learning rate."""
    return {
        at_rate(kind, rate): VARIANTS[kind](replace(base, optimizer=replace(base.optimizer, lr=rate)))
        for rate in rates
        for kind in kinds
    }


def collect(folder: Path) -> Data:
    """Rows and curves; rows say where the trained heads attend."""
    return measures.data_of(measures.outcomes(folder), folder, NAMES, parts=_parts)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    """Seed by seed, the medians of what `anatomy` found over the global heads of all layers."""
    seen = [look(outcome) for outcome in runs]
    return {key: [one[key] for one in seen if one] for key in SEEN} if all(seen) else {}


def look(outcome: Outcome) -> dict[str, float]:
    """What a run's `anatomy` says of the median global head; empty where the model was not examined."""
    found = outcome.after.get("anatomy", {})
    known: dict[str, list[float]] = {key: [] for key in SEEN}
    for layer, plan in enumerate(outcome.run.header.plans if found else ()):
        for key in SEEN:
            values = [found[key][layer][head] for head, window in enumerate(plan) if window is None]
            known[key] += [value for value in values if value is not None]
    return {key: statistics.median(values) for key, values in known.items()} if all(known.values()) else {}


def table(data: Data) -> str:
    pairs = {f"learning rate {rate:g}": (at_rate("ls", rate), at_rate("plain", rate)) for rate in RATES}
    return (
        f"LS-attention's lead in validation loss, over the run and at its end:\n\n{tables.gaps(data, pairs)}\n"
        f"{tables.losses(data)}"
    )


def sight_table(data: Data) -> str:
    header = ("global heads of", "seeds", "mass within 50 keys", "far keys above 1 %", "far mass on them")
    lines = [(name, len(seen[SEEN[0]]), *(shown(_mean(seen, key), 3) for key in SEEN)) for name, seen in _seen(data)]
    return (
        "Medians over the global heads of all layers, two sequences of the validation split; means over seeds:\n\n"
        + tables.markdown((*header, "rank of QK^T", "rank of attention"), lines)
    )


def _seen(data: Data) -> list[tuple[str, Row]]:
    """The rows of the variants whose models were examined."""
    return [(row["variant"], row) for row in data["rows"] if row.get(SEEN[0])]


def _mean(row: Row, key: str) -> float:
    return statistics.fmean(row[key])


def _of_kind(data: Data, kind: str) -> list[tuple[float, Row]]:
    """Rates and rows; empty unless both kinds ran at every rate."""
    rows = measures.by_name(data)
    return [(rate, rows[at_rate(kind, rate)]) for rate in RATES] if set(NAMES) <= rows.keys() else []


def calm(data: Data) -> Finding | None:
    if not (pairs := _of_kind(data, "ls")):
        return None
    ours = ", ".join(f"{shown(row['max_logit'], 3)} at {rate:g}" for rate, row in pairs)
    verdict = verdict_of([comparison.is_calm(row) for _, row in pairs])
    return Finding(ours=f"{ours}; {_steps(pairs)}", verdict=verdict, seeds=comparison.seeds_of(*(r for _, r in pairs)))


def explodes(data: Data) -> Finding | None:
    if not (pairs := _of_kind(data, "plain")):
        return None
    ours = ", ".join(
        f"{shown(row['max_logit'], 3)}{' (diverged)' if row['diverged'] else ''} at {rate:g}" for rate, row in pairs
    )
    exploded = [row["diverged"] == len(row["seeds"]) or comparison.has_exploded(row) for _, row in pairs]
    seeds = comparison.seeds_of(*(row for _, row in pairs))
    return Finding(ours=f"{ours}; {_steps(pairs)}", verdict=verdict_of(exploded), seeds=seeds)


def _steps(pairs: Sequence[tuple[float, Row]]) -> str:
    return f"the largest in {tables.span([step for _, row in pairs for step in row['steps']])} steps"


def sparse(data: Data) -> Finding | None:
    seen = [(name, row) for name, row in _seen(data) if name.startswith("ls-")]
    if len(seen) < len(RATES):
        return None
    found = [(name, _mean(row, "far_keys"), _mean(row, "far_noticed")) for name, row in seen]
    ours = "; ".join(
        f"{name}: {keys:.1f} keys above 1 %, {share:.0%} of the far mass on them" for name, keys, share in found
    )
    good = [keys < SPARSE_KEYS and share > SPARSE_SHARE for _, keys, share in found]
    return Finding(ours=ours, verdict=verdict_of(good), seeds=tuple(len(row[SEEN[0]]) for _, row in seen))


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    alt = drawing()
    tops: list[Any] = []
    middles: list[Any] = []
    bottoms: list[Any] = []
    for rate in RATES:
        curves = [c for c in data["curves"] if c["variant"] in {at_rate(kind, rate) for kind in KINDS}]
        common: dict[str, Any] = {
            "x": "step",
            "x_title": "step",
            "names": KINDS,
            "log": True,
            "width": 215,
            "height": 170,
        }
        validation, logits = figures.points(curves, series=lambda variant: variant.partition("-")[0])
        first = not tops
        top: dict[str, Any] = {"y": "perplexity", "y_title": "validation perplexity" if first else None}
        tops.append(figures.lines(validation, title=f"learning rate {rate:g}", **top, **common))
        middles.append(figures.lines(logits, y="logit", y_title="max |logit|" if first else None, **common))
        bottoms += figures.heads(curves, size=72)
    rows = [alt.hconcat(*panels).resolve_scale(x="shared", y="shared") for panels in (tops, middles)]
    if bottoms:
        rows.append(alt.hconcat(*bottoms).resolve_scale(color="shared"))
    return alt.vconcat(*rows).resolve_scale(color="independent")


EXPERIMENT = Experiment(
    name="explosion",
    question="Do plain attention's logits explode where LS-attention's stay small?",
    method=(
        "The author's model, optimizer and sequences of 2,048 tokens: plain attention against LS with 1 global and 5 "
        "local heads of window 50, at the author's learning rate and at 5 and 16 times that rate. There are 16 "
        "sequences per step instead of 256 and thousands of steps instead of 50,000; the data are books, not PG-19's "
        "own split, with a BPE of 10,000."
    ),
    cost="H200: about 5 minutes for one seed, six at a time; CPU --quick: a minute",
    caption=(
        "One column per learning rate. Validation perplexity over steps (top; the mean over seeds and a band from the "
        "lowest to the highest) and largest |logit| (middle; a line per seed). Below, the |logit| of every head at the "
        "last step, with the first seed. LS-attention's lead shrinks during training, as the first table shows."
    ),
    claims={
        "calm": Claim(
            text="LS-attention's largest |logit| stays small",
            paper="< 50",
            rule=f"{comparison.LOGITS_RULE}: holds if at all three rates, partly if at some",
            judge=calm,
        ),
        "explodes": Claim(
            text="plain attention's largest |logit| explodes or training diverges",
            paper="> 200 to > 400, diverges after 20-30k steps",
            rule="the same bounds, or divergence in every seed: holds if at all three rates, partly if at some",
            judge=explodes,
        ),
        "sparse": Claim(
            text="long-range dependencies are sparse",
            paper="assumed",
            rule=f"holds if the median global head of LS gives more than 1 % to fewer than {SPARSE_KEYS:g} far keys "
            f"and these hold more than {SPARSE_SHARE:.0%} of its far mass (means over seeds), at every rate; partly if "
            "at some",
            judge=sparse,
        ),
    },
    collect=collect,
    table=table,
    more=sight_table,
    figure=figure,
    variants=variants,
    steps=4000,
)
