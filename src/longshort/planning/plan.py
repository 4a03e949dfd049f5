"""From a configuration and machines to the text and the numbers of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longshort.data.tasks import classes_of
from longshort.planning.job import Job, Settings, check
from longshort.planning.machines import Machines
from longshort.planning.search import Estimate, fastest, fixed_settings, smallest, sweep
from longshort.planning.text import plan_text, record, sweep_text

if TYPE_CHECKING:
    from longshort.train import TrainConfig

_AS_CHEAP = 0.01
"""Of numbers of GPUs whose costs differ by less than this, the smallest counts as the cheapest."""


def job_of(config: TrainConfig) -> Job:
    """The job of a configuration that trains a language model."""
    if config.rl.task is not None:
        raise ValueError(f"a plan must be of training on text, got rl.task={config.rl.task}")
    if config.task.name is not None and classes_of(config.task.name) is not None:
        raise ValueError(f"a plan must be of a language model, got the classifier of task={config.task.name}")
    if config.run.precision == "fp32":
        raise ValueError("a plan must be of a run in bf16, got run.precision=fp32")
    return Job(
        model=config.model,
        length=config.length,
        batch=config.data.batch_size,
        optimizer=config.optimizer.kind,
        segments=config.data.segments,
    )


def planned(
    config: TrainConfig, machines: Machines, *, gpus: int | None = None, fix: Sequence[str] = ()
) -> tuple[str, dict[str, Any]]:
    """The plan as text and as plain values: for so many GPUs, or the cheapest of 1 to 1,024 if None."""
    try:
        return _planned(job_of(config), machines, gpus, fixed_settings(list(fix)))
    except OverflowError:
        raise ValueError("the model, its batch and its context must be small enough to be counted in floats") from None


def _planned(job: Job, machines: Machines, gpus: int | None, fixed: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if gpus is not None:
        found = fastest(job, machines.of(gpus), fixed)
        if found is None:
            raise ValueError(_why_not(job, machines.of(gpus), fixed))
        return plan_text(found), record(found)
    every = sweep(job, machines, fixed)
    fitting = [found for found in every.values() if found is not None]
    if not fitting:
        raise ValueError(_why_not(job, machines.of(max(every)), fixed))
    least = min(found.gpu_hours for found in fitting)
    best = next(found for found in fitting if found.gpu_hours <= (1 + _AS_CHEAP) * least)
    text = f"{sweep_text(every, job)}\n\nThe cheapest, in GPU hours per token:\n\n{plan_text(best)}"
    return text, record(best) | {"by_gpus": {gpus: found and _short(found) for gpus, found in every.items()}}


def _short(found: Estimate) -> dict[str, Any]:
    settings = {"settings": found.settings.overrides(), "bytes": found.bytes, "seconds": found.seconds}
    return settings | {"gpu_hours_per_billion_tokens": found.gpu_hours}


def _why_not(job: Job, machines: Machines, fixed: Mapping[str, Any]) -> str:
    """What keeps a job from these GPUs, and what would help."""
    least = smallest(job, machines, fixed)
    if least is not None:
        need, room = least.bytes / 1e9, machines.room / 1e9
        return (
            f"nothing fits {machines.gpus:,} x {machines.gpu}: the least is {need:,.1f} GB per GPU with "
            f"{' '.join(least.settings.overrides())}, and {room:,.1f} GB are free for tensors; more GPUs, more memory "
            "or a shorter context would fit"
        )
    sizes = {name: fixed.get(name, 1) for name in ("dp_replicate", "dp_shard", "cp", "accumulate")}
    reason = check(job, Settings(**sizes)) or f"dp_replicate x dp_shard x cp does not come to {machines.gpus:,} GPUs"
    return (
        f"{machines.gpus:,} GPUs cannot share data.batch_size={job.batch:,} sequences of {job.length:,} tokens"
        f"{' as fixed: ' + reason if fixed else '; a batch that is a multiple of the GPUs / cp would do'}"
    )
