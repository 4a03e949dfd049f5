"""Decides whether two configurations are the same run: some keys may change when a run is resumed, others may not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAY_CHANGE: dict[str, set[str]] = {
    "run": {
        *("out", "variant", "steps", "device", "compile", "compile_scope", "cuda_graphs", "checkpoint_activations"),
        "matmul",
        *("eval_every", "eval_batches", "save_every", "save_best", "keep", "tensorboard", "wandb"),
    },
    "stability": {"nonfinite_cap"},
    "telemetry": {"logits_every", "entropy_every", "layer_gradients"},
    "data": {"path"},
    "task": {"path", "tokenizer", "start"},
    "model": {"backend"},
    "loss": {"chunk"},
    "rl": {"start", "eval_problems", "eval_samples", "failed_share"},
    "parallel": {"dp_replicate", "dp_shard", "cp", "reshard", "reduce"},
}
"""Keys that may change when a run is resumed; changing any other makes it a different run."""

Sections = Mapping[str, Mapping[str, Any]]


def difference(ours: Sections, recorded: Sections) -> tuple[str, Any, Any] | None:
    """The first key in which the `recorded` configuration is a different run, with its value there and here.

    Both configurations are complete, so a key that only one of them has is not a difference.

    >>> difference({"optimizer": {"lr": 1e-3}}, {"optimizer": {"lr": 3e-3}})
    ('optimizer.lr', 0.003, 0.001)
    >>> difference({"run": {"steps": 9}}, {"run": {"steps": 5}}) is None
    True
    """
    for section, values in ours.items():
        theirs = recorded.get(section, {})
        for key, value in values.items():
            if key in theirs and key not in MAY_CHANGE.get(section, ()) and theirs[key] != value:
                return _of_layers(f"{section}.{key}", theirs[key], value)
    return None


def _of_layers(key: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """A key and two values that differ; of as many layers, the first that does."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        layer = next(i for i, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1])
        if isinstance(theirs[layer], Mapping):
            return f"{key}[{layer}]", theirs[layer], ours[layer]
    return key, theirs, ours
