"""What `soft-thinking` trains: its tasks, its variants, and how large everything is, in full and on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longshort.data.problems import open_task
from longshort.generation import AUTHORS_CLAMP
from longshort.train import TrainConfig

START, RATE = "start", "rate"
RATE_SEED = 100
"""Learning rates are chosen on this seed, which no result uses."""
GOAL = 0.4
"""Supervised training ends with the first evaluation at which this share of validation samples is right."""
TOP_K, TOP_P = 5, 0.95
"""Every model is read from this truncation, soft and hard, so that readings differ in nothing else."""

TAU = "soft-paper-tau"
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo"},
    "grpo-truncated": {"algorithm": "grpo", "truncate": True},
    "soft-code": {"algorithm": "soft-grpo", "form": "code", "noise_clamp": list(AUTHORS_CLAMP)},
    "soft-paper": {"algorithm": "soft-grpo", "form": "paper"},
    f"{TAU}0.5": {"algorithm": "soft-grpo", "form": "paper", "tau": 0.5},
    f"{TAU}1": {"algorithm": "soft-grpo", "form": "paper", "tau": 1.0},
    "soft-categorical": {"algorithm": "soft-grpo", "form": "categorical"},
    "gaussian": {"algorithm": "gaussian-soft"},
}
"""Keys of `rl`, by the name of the variant."""
FAMILIES = {"grpo": ("grpo", "grpo-truncated"), "soft-paper": tuple(VARIANTS)[2:-1], "gaussian": ("gaussian",)}
"""The learning rate of each variant is the one that was best for its family's first name."""
TASKS = {"frontiers": tuple(VARIANTS), "chains": ("grpo", "soft-paper", f"{TAU}1")}
"""The variants of each task."""
IS_SOFT = {name: settings["algorithm"] != "grpo" for name, settings in VARIANTS.items()}
"""Whether a variant thinks in mixtures, which is then its own way of reading."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the experiment is."""

    model: Mapping[str, Any]
    """Keys of `model`, but for the vocabulary and the context, which are the task's."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of the tasks."""
    supervised_steps: int = 8000
    """Most supervised steps."""
    supervised_batch: int = 256
    eval_every: int = 100
    """Supervised steps between evaluations."""
    eval_problems: int = 256
    """Validation problems of an evaluation, with one sample each."""
    steps: int = 100
    """Steps of reinforcement learning."""
    prompts: int = 64
    group: int = 8
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    """Learning rates to choose from."""
    rate_problems: int = 256
    """Validation problems, with `rate_samples` each, that decide between them."""
    rate_samples: int = 8
    problems: int = 1024
    """Test problems, with `samples` each, that every model is read on."""
    samples: int = 32
    batch: int = 4096
    """Sequences drawn at once."""
    signal_parts: int = 32
    """Independent gradients, each of as many problems as an update, that tell the signal to noise of a score."""


FULL = Sizes(model={"n_layers": 6, "width": 256, "n_heads": 8, "positions": "learned"})
QUICK = Sizes(
    model={"n_layers": 1, "width": 16, "n_heads": 2, "positions": "learned"},
    options={
        "frontiers": {"n_nodes": 6, "depth": 2, "targets": 1, "max_degree": 2},
        "chains": {"modulus": 5, "operations": 2, "constants": 2},
    },
    supervised_steps=6,
    supervised_batch=4,
    eval_every=3,
    eval_problems=4,
    steps=2,
    prompts=4,
    group=2,
    rates=(1e-3, 1e-2),
    rate_problems=4,
    rate_samples=2,
    problems=6,
    samples=4,
    batch=16,
    signal_parts=3,
)


def start_config(task: str, sizes: Sizes, shared: Mapping[str, Mapping[str, Any]]) -> TrainConfig:
    """The supervised run of a task, evaluated by discrete samples; `shared` are sections for every run."""
    run = {"steps": sizes.supervised_steps, "eval_every": sizes.eval_every, "save_every": 0, "keep": 1}
    rl = {"algorithm": "grpo", "supervised_steps": sizes.supervised_steps, "eval_problems": sizes.eval_problems}
    sections = _sections(task, sizes) | {
        "data": {"batch_size": sizes.supervised_batch},
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup": min(200, sizes.supervised_steps // 2), "floor": 0.05},
    }
    return _config(sections, shared, run=run, rl=rl)


def variant_config(
    task: str, variant: str, rate: float, sizes: Sizes, shared: Mapping[str, Mapping[str, Any]]
) -> TrainConfig:
    """A run of reinforcement learning; where it starts is set with its seed."""
    run = {"steps": sizes.steps, "eval_every": 0, "save_every": 0, "keep": 1}
    rl = {"prompts": sizes.prompts, "group": sizes.group, "eval_problems": sizes.eval_problems, **VARIANTS[variant]}
    sections = _sections(task, sizes) | {
        "optimizer": {"lr": rate, "betas": [0.9, 0.98], "weight_decay": 0.0},
        "schedule": {"kind": "constant", "warmup": min(5, sizes.steps // 2)},
    }
    return _config(sections, shared, run=run, rl=rl)


def _sections(task: str, sizes: Sizes) -> dict[str, dict[str, Any]]:
    options = dict(sizes.options.get(task, {}))
    opened = open_task(task, options)
    context = opened.max_prompt + opened.max_new_tokens
    return {
        "model": {"context": context, **sizes.model},
        "run": {"matmul": "highest"},
        "rl": {"task": task, "task_options": options},
    }


def _config(
    sections: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Mapping[str, Any]], **more: Mapping[str, Any]
) -> TrainConfig:
    names = {*sections, *shared, *more}
    return TrainConfig.from_dict({n: {**sections.get(n, {}), **more.get(n, {}), **shared.get(n, {})} for n in names})


def family_of(variant: str) -> str:
    """The variant whose learning rate this one takes."""
    return next(family for family, members in FAMILIES.items() if variant in members)
