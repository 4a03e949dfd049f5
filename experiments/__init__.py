"""The experiments, one module for each question, and the engine that runs, packs and publishes them.

`python -m experiments --list` shows them all; none of this is part of the installed package. To add one, write a module
with an `EXPERIMENT` (`positions` is a short example) and add its name to `NAMES`. `--publish` saves its data and builds
its page; a person writes what the page says about the numbers, in `results/NAME.reading.md`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.engine.records import Experiment

NAMES = (
    *("explosion", "stabilizers", "stabilizers-long", "lr-sensitivity", "heads-and-window", "windows-long"),
    *("degrees-of-freedom", "positions", "positions-long", "latency"),
    *("endurance", "endurance-others", "precision", "scale"),
    *("label-noise", "label-noise-images", "corrupted-tokens", "loss-landscape"),
    *("long-range", "las-sweep", "las-gain", "las-causal", "las-books", "recall"),
    *("reach", "reach-modern", "reach-30m", "reach-125m", "reach-once", "reach-costs"),
    *("retrieval", "retrieval-modern", "retrieval-30m", "gumbel-score", "soft-thinking"),
)
"""Every experiment, in the order of the table of claims."""


def load(name: str) -> Experiment:
    """The experiment of this name, from its module.

    >>> load("heads-and-window").question
    'How many global heads, and how wide a window?'
    """
    if name not in NAMES:
        raise ValueError(f"NAME must be one of {', '.join(NAMES)}, got {name!r}")
    found: Experiment = import_module(f"experiments.{name.replace('-', '_')}").EXPERIMENT
    return found
