"""The allowed ranges and choices of each configuration key by itself, checked before anything is built.

Those of the model and the loss are in `longshort.model.config` and `longshort.losses.settings`.
"""

from __future__ import annotations

from typing import Any

from longshort.data.tasks import TASKS
from longshort.model.classifier import NORMS
from longshort.ranges import Range
from longshort.train.muon import SCALES
from longshort.train.settings.rl import ALGORITHMS, FORMS
from longshort.train.settings.values import ConfigError, check_one_of

LARGEST_COUNT = 2**63 - 1
LARGEST_NUMBER = 1e38
"""Kernels compute in fp32, which can represent this number and its inverse."""


def _count(least: int) -> Range:
    return Range(f"an integer from {least} to 2^63 - 1", lambda value: least <= value <= LARGEST_COUNT)


_POSITIVE = Range(
    f"a number from {1 / LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}",
    lambda value: 1 / LARGEST_NUMBER <= value <= LARGEST_NUMBER,
)
_AT_LEAST_0 = Range(f"a number from 0 to {LARGEST_NUMBER:g}", lambda value: 0 <= value <= LARGEST_NUMBER)
_SHARE = Range("a number from 0 to 1", lambda value: 0 <= value <= 1)
_ABOVE_0_TO_1 = Range("a number above 0 and at most 1", lambda value: 0 < value <= 1)
_AUTO_OR_BOOL = Range("auto, true or false", lambda value: value in ("auto", True, False))
_REST_OR_COUNT = Range("-1 (the rest) or an integer from 1", lambda value: value == -1 or 1 <= value <= LARGEST_COUNT)
_SEED = Range("an integer of 64 bits, from -2^63 to 2^63 - 1", lambda value: -(2**63) <= value < 2**63)

RANGES: dict[str, Range] = {
    "data.length": _count(1),
    "data.batch_size": _count(1),
    "data.corruption": _SHARE,
    "data.share": _ABOVE_0_TO_1,
    "optimizer.lr": _POSITIVE,
    "optimizer.betas": Range("two numbers from 0 to 1, 1 excluded", lambda both: all(0 <= b < 1 for b in both)),
    "optimizer.eps": _POSITIVE,
    "optimizer.weight_decay": _AT_LEAST_0,
    "optimizer.muon_lr": _POSITIVE,
    "optimizer.muon_momentum": Range("a number from 0 to 1, 1 excluded", lambda value: 0 <= value < 1),
    "schedule.warmup": _count(0),
    "schedule.floor": _SHARE,
    "schedule.decay": _SHARE,
    "run.steps": _count(1),
    "run.seed": _SEED,
    "run.accumulate": _count(1),
    "run.compile": _AUTO_OR_BOOL,
    "run.cuda_graphs": _AUTO_OR_BOOL,
    "run.checkpoint_activations": Range("attention, true or false", lambda value: value in ("attention", True, False)),
    "run.eval_every": _count(0),
    "run.eval_batches": _count(1),
    "run.save_every": _count(0),
    "run.keep": _count(1),
    "telemetry.logits_every": _count(0),
    "telemetry.entropy_every": _count(0),
    "stability.guard_threshold": _POSITIVE,
    "stability.guard_window": _count(2),
    "stability.guard_warmup": _count(2),
    "stability.guard_cap": _count(1),
    "stability.guard_cooldown": _count(0),
    "stability.nonfinite_cap": _count(0),
    "stability.clip_norm": _POSITIVE,
    "stability.qk_clip": _POSITIVE,
    "task.length": _count(1),
    "task.seed": _SEED,
    "task.train": _count(1),
    "task.validation": _count(1),
    "task.test": _count(1),
    "task.paddles": _count(1),
    "task.pairs": _count(1),
    "task.symbols": _count(1),
    "task.digits": _count(1),
    "rl.task_seed": _SEED,
    "rl.supervised_steps": _count(0),
    "rl.supervised_lr": _POSITIVE,
    "rl.prompts": _count(1),
    "rl.group": _count(2),
    "rl.updates": _count(1),
    "rl.clip": Range("a number above 0 and below 1", lambda value: 0 < value < 1),
    "rl.dual_clip": Range("a number above 1", lambda value: 1 < value <= LARGEST_NUMBER),
    "rl.kl": _AT_LEAST_0,
    "rl.max_new_tokens": _count(1),
    "rl.temperature": _POSITIVE,
    "rl.top_k": _count(1),
    "rl.top_p": _ABOVE_0_TO_1,
    "rl.tau": _POSITIVE,
    "rl.noise_clamp": Range(
        "a lower and a higher bound", lambda both: -LARGEST_NUMBER <= both[0] < both[1] <= LARGEST_NUMBER
    ),
    "rl.sigma": _POSITIVE,
    "rl.failed_share": _SHARE,
    "rl.eval_problems": _count(1),
    "rl.eval_samples": _count(1),
    "parallel.dp_replicate": _REST_OR_COUNT,
    "parallel.dp_shard": _REST_OR_COUNT,
    "parallel.cp": _count(1),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer.kind": ("adamw", "muon"),
    "optimizer.muon_scale": SCALES,
    "schedule.kind": ("constant", "cosine", "wsd"),
    "run.device": ("auto", "cpu", "cuda"),
    "run.precision": ("auto", "fp32", "bf16"),
    "run.matmul": ("auto", "high", "highest"),
    "run.compile_scope": ("auto", "model", "block"),
    "stability.guard": ("off", "warn", "skip", "rollback"),
    "stability.clip": ("global", "tensor", "none"),
    "task.name": tuple(TASKS),
    "task.norm": NORMS,
    "rl.algorithm": ALGORITHMS,
    "rl.form": FORMS,
    "parallel.reduce": ("fp32", "bf16"),
}


def check_value(key: str, value: Any) -> None:
    """Raise if the value of `section.key` is out of its range or not among its choices.

    None passes: the types say which keys take it. `run.device` may end in the number of a GPU.
    """
    if value is None:
        return
    if key in CHOICES:
        check_one_of(key, value.split(":")[0] if key == "run.device" else value, CHOICES[key])
    if key in RANGES and not RANGES[key].holds(value):
        raise ConfigError(f"{key} must be {RANGES[key].words}, got {value!r}")
