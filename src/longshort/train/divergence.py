"""A run that diverged: whether its weights are still finite, and what its log says about how it happened.

A step with a non-finite gradient leaves non-finite weights, which never recover. So such weights are never saved, and
the run stops after `stability.nonfinite_cap` consecutive non-finite steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from longshort.parallel.shards import local
from longshort.runs import Run, load_run
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, checkpoint_names
from longshort.train.settings.config import TrainConfig

GREW = 4.0
"""A head's logits grew if the last reading is this many times the usual one of the run's first half."""
BEGAN = 2.0
"""Growth began where the readings passed this many times the usual one and stayed above it."""
_NAMED_HEADS = 3


class TrainingStopped(RuntimeError):
    """The run diverged: too many consecutive steps were not finite, or the guard reached its cap on rollbacks."""


class Growth(NamedTuple):
    """One head whose logits grew before the end; layer and head count from 0, as in the report."""

    layer: int
    head: int
    step: int
    """The step at which the growth began."""
    usual: float
    last: float


def nonfinite_weight(weights: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds a non-finite number, or None; of sharded ones, in this process's part."""
    floating = {name: local(tensor) for name, tensor in weights.items() if tensor.is_floating_point()}
    # One number to read per tensor: a sum is finite if its terms are, except on overflow, which the second check rules
    # out.
    sums = [tensor.detach().sum(dtype=torch.float64) for tensor in floating.values()]
    if not sums or bool(torch.stack(sums).isfinite().all()):
        return None
    return next((name for name, tensor in floating.items() if not bool(tensor.isfinite().all())), None)


def grown_heads(run: Run) -> list[Growth]:
    """The heads whose largest |logit| grew before the run's end, the fastest-growing first."""
    found = []
    for layer, head in np.ndindex(run.logits_NLH.shape[1:]):
        series = run.logits_NLH[:, layer, head]
        steps, series = run.logit_steps[np.isfinite(series)], series[np.isfinite(series)]
        if len(series) < 2:
            continue
        usual = float(np.median(series[: (len(series) + 1) // 2]))
        if usual > 0 and series[-1] >= GREW * usual:
            calm = np.flatnonzero(series < BEGAN * usual)
            began = int(steps[calm[-1] + 1 if len(calm) else 0])
            found.append(Growth(layer, head, began, usual, float(series[-1])))
    return sorted(found, key=lambda growth: growth.usual / growth.last)


def told(config: TrainConfig, out: Path) -> str:
    """How a run diverged according to its log, what to try, and what is left of the run."""
    names = checkpoint_names(out / CHECKPOINTS)
    newest = out / CHECKPOINTS / names[-1] if names else None
    left = "no checkpoint was written before that" if newest is None else f"the last finite checkpoint is {newest}"
    try:
        history = _history(load_run(out))
    except (OSError, ValueError) as error:  # moved or damaged meanwhile; the divergence still comes first
        history = f"its log cannot be read ({error})"
    return f"{history}; try {_remedies(config)}. The log is in {out}; {left}"


def _history(run: Run) -> str:
    grown = grown_heads(run)
    if not grown:
        return "no head's logits grew before that" if len(run.logit_steps) else "no logits were recorded"
    heads = ", ".join(f"layer {g.layer} head {g.head} from {g.usual:.3g} to {g.last:.3g}" for g in grown[:_NAMED_HEADS])
    more = f" and {len(grown) - _NAMED_HEADS} more heads" if len(grown) > _NAMED_HEADS else ""
    return f"the logits began to grow at step {min(g.step for g in grown)}, {heads}{more}"


def _remedies(config: TrainConfig) -> str:
    """Remedies that are not in use yet, the cheapest first."""
    stability, model = config.stability, config.model
    ways = [f"an optimizer.lr below {config.optimizer.lr:g}"]
    if stability.guard in ("off", "warn"):
        ways.append("stability.guard=rollback")
    if stability.clip == "none":
        ways.append("stability.clip=global")
    if stability.qk_clip is None and model.qk_norm is None:
        ways.append("stability.qk_clip=100")
    if all(window is None for plan in model.layer_plans for window in plan.windows):
        ways.append("short heads (model.n_global=1 model.window=64)")
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
