"""What a user waits for: whole training steps against a nanoGPT-style peer, the host's share of them, the trainer
around them, and the loss by itself.

The parts are measured one at a time and added to one file; `training_page` draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.harness import OURS, Recorder, require
from benchmarks.host import Calls, measure_eager, measure_inside
from benchmarks.loss import Head, measure_loss
from benchmarks.pages import Results
from benchmarks.shapes import Shape
from benchmarks.steps import BLOCKS, COMPILED, RECOMPUTED, Setting, Way, as_a_user_trains, measure_steps
from benchmarks.trainer import measure_small, measure_start, trainer_against_bare_loop
from benchmarks.training_page import PAGE, goals
from longshort.model.presets import PRESETS

PARTS = ("step", "vocabulary", "small", "models", "host", "loss", "trainer", "start")
_GPT2: dict[str, Any] = {"n_layers": 12, "width": 768, "n_heads": 12, "vocab_size": 50_304, "tie_embeddings": True}
_PAPER: dict[str, Any] = {"n_layers": 6, "width": 192, "n_heads": 6, "vocab_size": 10_000}
_TINY: dict[str, Any] = {"n_layers": 1, "width": 32, "n_heads": 2, "vocab_size": 128, "tie_embeddings": True}


def _preset(name: str, batch: int) -> Setting:
    sizes = dict(PRESETS[name])
    return Setting(batch=batch, context=sizes.pop("context"), window=sizes["window"], sizes=sizes)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured on a device."""

    steps: tuple[Setting, ...]
    """Whole steps."""
    usual: Setting
    """The setting of the vocabularies, of the trainer and of its start."""
    odd_vocabulary: int
    """Compared with that of the setting, which is a multiple of 64."""
    small: Setting
    models: dict[str, Setting]
    """Presets, by name."""
    deep: str
    """The preset whose start is timed."""
    calls: Calls = field(default_factory=Calls)
    head: Head = field(default_factory=Head)
    clocked: tuple[int, int] = (5, 50)
    """Steps in a row per sample, of a large and of a small model."""
    trained: tuple[tuple[int, int], tuple[int, int]] = ((20, 120), (100, 600))
    """Steps of the trainer between which it is timed, for the usual and the small setting."""
    compiler: str = "inductor"


SIZES = {
    "cuda": Sizes(
        steps=(
            Setting(batch=32, context=1024, window=64, sizes=_GPT2),
            Setting(batch=8, context=4096, window=128, sizes=_GPT2),
            Setting(batch=1, context=32768, window=128, sizes=_GPT2),
        ),
        usual=Setting(batch=8, context=4096, window=128, sizes=_GPT2),
        odd_vocabulary=50_257,
        small=Setting(batch=16, context=2048, window=50, sizes=_PAPER),
        models={name: _preset(name, n) for name, n in (("modern-125m", 16), ("modern-350m", 16), ("modern-1b", 4))},
        deep="modern-350m",
    ),
    # Shows that it runs.
    "cpu": Sizes(
        steps=(Setting(batch=2, context=32, window=8, sizes=_TINY),),
        usual=Setting(batch=2, context=32, window=8, sizes=_TINY),
        odd_vocabulary=127,
        small=Setting(batch=2, context=32, window=8, sizes=_TINY | {"tie_embeddings": False}),
        models={"tiny": Setting(batch=2, context=32, window=8, sizes=_TINY | {"n_global": 1, "window": 8})},
        deep="tiny",
        calls=Calls(
            shape=Shape(batch=1, heads=2, length=32, head_dim=16, window=8),
            inside=Shape(batch=1, heads=2, length=32, head_dim=16, window=8),
            layers=(1, 3),
            calls=3,
            stacked_calls=3,
        ),
        head=Head(tokens=64, features=16, vocabularies=(128, 127)),
        clocked=(2, 2),
        trained=((2, 6), (2, 6)),
        compiler="eager",
    ),
}

Piece = tuple[str, Callable[[], list[dict[str, Any]]]]


def run(
    record: Recorder,
    *,
    device: str = "cuda",
    parts: Sequence[str] | None = None,
    sizes: Sizes | None = None,
    rounds: int = 5,
) -> Results:
    """Measure the parts. `step:4096` is the part step at that context alone."""
    require(device)
    pieces = _pieces(sizes or SIZES[device], device, rounds)
    chosen = [piece for part in (PARTS if parts is None else parts) for piece in _chosen(part, pieces)]

    gpu = device == "cuda"  # for which the goals are
    record.begin(PAGE, device, conclude=lambda results: {"goals": goals(results if gpu else {})}, merge=True)
    with as_a_user_trains():
        for part, (name, measure) in chosen:
            record.piece(part, name, measure, lenient=True)  # the other rows are still worth having
            torch.compiler.reset()
    return record.end()


def _chosen(part: str, pieces: dict[str, list[Piece]]) -> list[tuple[str, Piece]]:
    name, _, only = part.partition(":")
    found = [(name, piece) for piece in pieces.get(name, []) if not only or piece[0] == part]
    if not found:
        known = [piece for each, inside in pieces.items() for piece in (each, *(n for n, _ in inside if ":" in n))]
        raise ValueError(f"parts must be some of {', '.join(known)}, got {part}")
    return found


def _pieces(sizes: Sizes, device: str, rounds: int) -> dict[str, list[Piece]]:
    """What each part measures, by its name."""
    timing: dict[str, Any] = {"device": device, "rounds": rounds}
    compiled: dict[str, Any] = timing | {"compiler": sizes.compiler}
    large, small = sizes.clocked
    vocabularies = [
        Way(name=OURS, heads="ls", how=COMPILED, vocab_size=count)
        for count in (sizes.usual.sizes["vocab_size"], sizes.odd_vocabulary)
    ]
    whole = [Way(name=OURS, heads="preset", how=how) for how in (COMPILED, BLOCKS, RECOMPUTED)]
    return {
        "step": [
            (f"step:{setting.context}", partial(measure_steps, setting, steps=large, **compiled))
            for setting in sizes.steps
        ],
        "vocabulary": [("vocabulary", partial(measure_steps, sizes.usual, vocabularies, steps=large, **compiled))],
        "models": [
            (f"models:{name}", partial(measure_steps, setting, whole, steps=large, **compiled))
            for name, setting in sizes.models.items()
        ],
        "small": [("small", partial(measure_small, sizes.small, steps=small, **timing))],
        "host": [
            ("host:eager", partial(measure_eager, sizes.calls, **compiled)),
            ("host:inside", partial(measure_inside, sizes.calls, **compiled)),
        ],
        "loss": [
            (f"loss:{classes}", partial(measure_loss, sizes.head, classes, **compiled))
            for classes in sizes.head.vocabularies
        ],
        "trainer": [
            (f"trainer:{name}", partial(trainer_against_bare_loop, setting, device=device, first=first, last=last))
            for name, setting, (first, last) in zip(
                ("usual", "small"), (sizes.usual, sizes.small), sizes.trained, strict=True
            )
        ],
        "start": [
            ("start", partial(measure_start, sizes.usual, device=device)),
            (
                "start:deep",
                partial(
                    measure_start,
                    sizes.models[sizes.deep],
                    device=device,
                    heads="preset",
                    scopes=("model", "block"),
                    every_cache=("cold",),
                ),
            ),
        ],
    }
