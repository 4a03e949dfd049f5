"""What the experiments on long-range tasks share: the classifier, its kinds of attention, and the setup of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from experiments.engine.base import ON_TASKS, QUICK_ON_TASKS
from longshort.data.tasks import TASKS
from longshort.heads import HeadPlan
from longshort.train import TrainConfig
from longshort.train.settings.config import TaskConfig
from longshort.train.sweeps.variants import LAS_MAX_DECAY, LAS_WIDTH, with_plan

N_GLOBAL, WINDOW = 2, 64
POINT = 0.01
"""A difference in accuracy below one point decides nothing."""
DENSE_PAIRS = 4 * 2000**2
"""Query-key pairs per micro-batch where whole attention matrices are formed: four sequences of 2,000 tokens."""

BASE: dict[str, dict[str, Any]] = {
    **ON_TASKS,
    "task": {"name": "listops"},
    "model": {
        "vocab_size": 257,
        "context": 4000,
        "n_layers": 6,
        "width": 256,
        "n_heads": 8,
        "ff_multiplier": 2,
        "positions": "none",
    },
    "data": {"batch_size": 32},
}
QUICK_BASE: dict[str, dict[str, Any]] = {
    **BASE,
    **QUICK_ON_TASKS,
    "task": {"name": "listops", "length": 128, "train": 192, "validation": 16, "test": 16},
    "model": {**BASE["model"], "n_layers": 1, "width": 32, "n_heads": 4},
}
_SIZES = ("length", "train", "validation", "test")


def on_task(base: TrainConfig, name: str, settings: Mapping[str, Any]) -> TrainConfig:
    """The base with this task. Sizes that the base sets itself, as for `--quick`, take precedence over the settings."""
    own = {size: value for size in _SIZES if (value := getattr(base.task, size)) is not None}
    if "length" not in TASKS[name].defaults:
        own.pop("length", None)
    path = {"path": base.task.path} if "path" in TASKS[name].texts else {}
    shared = {"seed": base.task.seed, "causal": base.task.causal, "norm": base.task.norm}
    return replace(base, task=TaskConfig(name=name, **{**settings, **own, **path, **shared}))


def decayed(config: TrainConfig, max_decay: float = LAS_MAX_DECAY) -> TrainConfig:
    """LaS's decay: every head global, all but the first decaying."""
    return with_plan(config, HeadPlan.las(config.model.n_heads, max_decay))


def smoothed(config: TrainConfig, width: int = LAS_WIDTH) -> TrainConfig:
    """LaS's smoothing: centred in two-sided attention, over a position and those before it in causal attention."""
    side = "causal" if config.task.causal else "centred"
    return replace(config, model=replace(config.model, smoothing=width, smoothing_side=side))


def _positions(name: str) -> Callable[[TrainConfig], TrainConfig]:
    return lambda config: replace(config, model=replace(config.model, positions=name))


def _windows(config: TrainConfig) -> TrainConfig:
    return with_plan(config, HeadPlan.long_short(config.model.n_heads, N_GLOBAL, min(WINDOW, config.length // 4)))


def _las(config: TrainConfig) -> TrainConfig:
    return smoothed(decayed(config))


def _pooled_before(config: TrainConfig) -> TrainConfig:
    """LaS with logits pooled before the softmax. Causal attention has smoothed keys for that, in every backend;
    two-sided attention needs the reference backend, with few sequences at a time to bound memory.
    """
    config = _las(config)
    model = replace(config.model, smoothing_stage="before")
    if config.task.causal:
        return replace(config, model=model)
    batch, fitting = config.data.batch_size, DENSE_PAIRS // config.length**2
    accumulate = next(n for n in range(1, batch + 1) if batch % n == 0 and (batch // n <= fitting or n == batch))
    run = replace(config.run, accumulate=accumulate, cuda_graphs=False)
    return replace(config, model=replace(model, backend="reference"), run=run)


KINDS: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "none": lambda config: config,
    "sinusoidal": _positions("sinusoidal"),
    "rotary": _positions("rotary"),
    "alibi": _positions("alibi"),
    "decay": decayed,
    "ls": _windows,
    "ls-rotary": lambda config: _windows(_positions("rotary")(config)),
    "smoothing": smoothed,
    "las": _las,
    "las-causal": lambda config: _las(replace(config, task=replace(config.task, causal=True))),
    "ls-smooth": lambda config: smoothed(_windows(config)),
    "las-before": _pooled_before,
}
"""What differs between variants; `none` has plain heads without positions. In a causal configuration all are causal."""
