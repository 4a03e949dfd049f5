"""The experiments, one module for each question, and the engine that runs, packs and publishes them.

`python -m experiments --list` shows them all; none of this is part of the installed package. To add one, write a module
with an `EXPERIMENT` (`positions` is a short example) and add its name to `TOPICS`. `--publish` saves its data and
builds its page; a person writes what the page says about the numbers, in `results/NAME.reading.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.engine.records import Experiment

TOPICS: dict[str, tuple[str, ...]] = {
    "Stability": ("explosion", "endurance", "endurance-others", "precision", "scale", "degrees-of-freedom"),
    "Other stabilizers": ("stabilizers", "stabilizers-long", "lr-sensitivity"),
    "Heads, windows and positions": ("heads-and-window", "windows-long", "positions", "positions-long"),
    "Where reach should go": ("reach", "reach-modern", "reach-30m", "reach-125m", "reach-once", "reach-rates"),
    "Retrieval": ("retrieval", "retrieval-modern", "retrieval-30m", "recall"),
    "Cost": ("latency", "reach-costs"),
    "LaS attention": ("long-range", "las-sweep", "las-gain", "las-causal", "las-books"),
    "The e-exponentiated loss": ("label-noise", "label-noise-images", "corrupted-tokens", "loss-landscape"),
    "Soft thinking": ("gumbel-score", "soft-thinking"),
}
"""Every experiment, by what it is about, in the order of the tables of claims."""
NAMES = tuple(name for names in TOPICS.values() for name in names)


def load(name: str) -> Experiment:
    """The experiment of this name, from its module.

    >>> load("heads-and-window").question
    'How many global heads, and how wide a window?'
    """
    if name not in NAMES:
        raise ValueError(f"NAME must be one of {', '.join(NAMES)}, got {name!r}")
    found: Experiment = import_module(f"experiments.{name.replace('-', '_')}").EXPERIMENT
    return found


def topics() -> dict[str, list[Experiment]]:
    """Every experiment, by what it is about."""
    return {topic: [load(name) for name in names] for topic, names in TOPICS.items()}
