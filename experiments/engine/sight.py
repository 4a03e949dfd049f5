"""Where the global heads of trained models look: medians of what `anatomy` found in the runs of an arm."""

from __future__ import annotations

import statistics

from experiments.engine import measures

_SEEN = ("near_mass", "far_keys", "far_noticed", "logit_rank", "attention_rank")


def of_runs(runs: list[measures.Outcome]) -> dict[str, float] | None:
    """Of the global heads, over layers and runs: medians of what `anatomy` found."""
    heads = []
    for outcome in runs:
        found = outcome.after.get("anatomy", {})
        for layer, plan in enumerate(outcome.run.header.plans if found else ()):
            heads += [{k: found[k][layer][h] for k in _SEEN} for h, window in enumerate(plan) if window is None]
    known = {key: [head[key] for head in heads if head[key] is not None] for key in _SEEN}
    if not all(known.values()):
        return None
    return {key: statistics.median(values) for key, values in known.items()}


def table(looks: dict[str, dict[str, float]]) -> str:
    header = ("global heads of", "mass within 50 keys", "far keys above 1 %", "far mass on them")
    shown = measures.shown
    return "Medians over the global heads of all layers, two rows of the validation split:\n\n" + measures.markdown(
        (*header, "rank of QK^T", "rank of attention"),
        [(name, *(shown(look[key], 3) for key in _SEEN)) for name, look in looks.items()],
    )
