"""The section `parallel` of a configuration: how a run is spread over the processes that torchrun starts."""

from __future__ import annotations

from dataclasses import dataclass

from longshort.data.tasks import classes_of
from longshort.model import GPTConfig
from longshort.parallel.mesh import Sizes, mesh_sizes
from longshort.train.settings.sections import TaskConfig
from longshort.train.settings.values import ConfigError


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How a run is spread over processes; dp_replicate * dp_shard * cp is their number. All of it may change when a
    run is resumed.
    """

    dp_replicate: int = -1
    """Copies of the model; -1 is as many as the other sizes leave, or 1 if dp_shard is -1 too. The copies train on
    different sequences."""
    dp_shard: int = 1
    """Processes that share one copy of the weights, gradients and moments (FSDP2), on different sequences; -1 is as
    many as the other sizes leave. 1 keeps everything in each process (DDP), unless cp is more than 1."""
    cp: int = 1
    """Processes that share each sequence, of which each has a part of the positions; they share the copy of the weights
    too, which is spread over dp_shard * cp processes."""
    reshard: bool = True
    """With dp_shard or cp, free a block's gathered weights after its forward pass and gather them again in the backward
    pass: less memory, more communication."""
    reduce: str = "fp32"
    """With dp_shard or cp, precision in which gradients are summed over processes: fp32 or bf16."""

    def sizes(self, world: int) -> Sizes:
        """The sizes for so many processes; an error says which would fit."""
        try:
            return mesh_sizes(world, dp_replicate=self.dp_replicate, dp_shard=self.dp_shard, cp=self.cp)
        except ValueError as error:
            raise ConfigError(str(error)) from None


def check_parallel(parallel: ParallelConfig, task: TaskConfig, model: GPTConfig, length: int) -> None:
    """Raise where keys of `parallel` ask for what does not exist, or exclude keys of other sections."""
    if parallel.cp != 1:
        _check_shared(parallel.cp, task.name, model, length)
    if parallel.dp_shard != 1 and task.norm == "batch":
        raise ConfigError(
            f"task.norm must be layer with parallel.dp_shard={parallel.dp_shard}, since each process would have its "
            "own running means of the batch norms, got batch"
        )


def _check_shared(cp: int, task: str | None, model: GPTConfig, length: int) -> None:
    """Raise where processes cannot share sequences; what depends on the heads is checked in the model."""
    if task is not None and classes_of(task) is not None:
        raise ConfigError(
            f"parallel.cp must be 1 for the task {task}, since a classifier takes the mean over whole sequences, "
            f"got {cp}; parallel.dp_shard saves memory too"
        )
    if model.attention_chunk is not None:
        raise ConfigError(
            f"model.attention_chunk must be null with parallel.cp={cp}, got {model.attention_chunk}: give the "
            "heads windows instead"
        )
    if length % cp:
        fitting = [str(n) for n in range(2, min(length, 64) + 1) if length % n == 0]
        raise ConfigError(
            f"parallel.cp must divide the {length:,} tokens of a sequence (data.length), got {cp}; "
            f"{', '.join(fitting) or 'only 1'} would fit"
        )
