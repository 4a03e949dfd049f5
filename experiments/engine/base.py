"""The configurations that variants start from: the author's at a smaller batch, one for tasks, and CPU-sized ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from experiments.engine.records import Experiment, Options
from longshort.data import default_data
from longshort.data.tasks import TASKS
from longshort.train import ConfigError, TrainConfig

AUTHOR_LR = 6e-4
QUICK_STEPS = 12
EVALUATIONS = 16
"""Evaluations per run, evenly spread."""

_RUN = {"save_every": 0, "save_best": False, "keep": 1}
PAPER: dict[str, Any] = {
    "model": {"preset": "paper-6m"},
    "data": {"batch_size": 16},
    "optimizer": {"lr": AUTHOR_LR, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "schedule": {"kind": "constant", "warmup": 200},
    "run": {"eval_batches": 16, **_RUN},
    "telemetry": {"logits_every": 10},
}
"""The author's model, optimizer and sequences (arXiv 2505.15548), with 16 sequences per step instead of 256."""
QUICK: dict[str, Any] = {
    "model": {
        "vocab_size": 257,
        "context": 128,
        "n_layers": 2,
        "width": 48,
        "n_heads": 6,
        "n_global": 1,
        "window": 16,
    },
    "data": {"batch_size": 2},
    "optimizer": {"lr": AUTHOR_LR, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "schedule": {"kind": "constant", "warmup": 2},
    "run": {"eval_batches": 1, **_RUN},
    "telemetry": {"logits_every": 4},
}
"""Shows that the machinery runs; too small and too short for any claim."""
ON_TASKS: dict[str, dict[str, Any]] = {
    "optimizer": {"lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup": 300, "floor": 0.0},
    "run": {"eval_batches": 16, **_RUN},
    "telemetry": {"logits_every": 50},
}
"""What the experiments on tasks have in common."""
QUICK_ON_TASKS: dict[str, dict[str, Any]] = {
    "data": {"batch_size": 4},
    "schedule": {"kind": "constant", "warmup": 2},
    "run": {"eval_batches": 1, **_RUN},
    "telemetry": {"logits_every": 4},
}
ON_CPU: dict[str, Any] = {"run.compile": False, "run.cuda_graphs": False}
ON_CUDA: dict[str, Any] = {
    "model.backend": "triton",
    "model.loss_chunk": 1 << 13,
    "run.matmul": "highest",
    "run.compile": True,
    "run.compile_scope": "block",
    "run.cuda_graphs": True,
    "telemetry.logits_every": 1,
}
"""The default chunk of the loss saves memory that such a model does not need. Compiled, a step takes 5.5 ms on an H200
instead of 9 (benchmarks/results/training-step-h200.txt), and replayed as CUDA graphs it does not wait for Python. One
block is compiled for all layers, and every step has statistics: otherwise compiling would be half of a short run."""


def on_cuda(device: str) -> bool:
    """Will a run on this device use a GPU?"""
    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


def _has_task(experiment: Experiment) -> bool:
    return experiment.base is not None and "task" in experiment.base


def token_folder(experiment: Experiment, options: Options) -> Path | None:
    """The folder of the data, or an error with the command that makes one; None where the variants have tasks."""
    if _has_task(experiment):
        return None
    if options.data is None and options.quick:
        return default_data()
    command = "longshort data --out data/books --vocab-size 10000 BOOKS.txt --validation HELD-OUT.txt"
    if options.data is None:
        raise ConfigError(f"{experiment.name} needs --data, a token folder; this makes one: {command}")
    if not (options.data / "train.tokens").is_file():
        raise ConfigError(f"--data {options.data} holds no train.tokens; this makes a token folder: {command}")
    return options.data.resolve()


def base_config(experiment: Experiment, options: Options, *, data: Path | None) -> TrainConfig:
    """What every variant starts from. The vocabulary is that of the data; on a GPU all use the same named kernel."""
    steps = options.steps or (QUICK_STEPS if options.quick else experiment.steps)
    author = QUICK if options.quick else PAPER
    own = experiment.quick_base if options.quick else experiment.base
    values = {section: dict(keys) for section, keys in (author if own is None else own).items()}
    changes: dict[str, Any] = dict(ON_CUDA if on_cuda(options.device) else ON_CPU)
    changes |= {} if options.quick else experiment.settings
    changes |= {"run.steps": steps, "run.eval_every": max(1, steps // EVALUATIONS), "run.device": options.device}
    if data is not None:
        changes |= {"data.path": str(data), "model.vocab_size": None}
    if _has_task(experiment) and options.data is not None:
        takes_path = "path" in TASKS[values["task"]["name"]].texts
        changes |= {"task.path": str(options.data.resolve())} | ({} if takes_path else {"task.name": "text"})
    for name, value in changes.items():
        section, _, key = name.partition(".")
        values[section][key] = value
    config = TrainConfig.from_dict(values).with_overrides(options.overrides)
    if not config.telemetry.logits_every:
        raise ConfigError("telemetry.logits_every must be at least 1, since every experiment reads logits, got 0")
    return config
