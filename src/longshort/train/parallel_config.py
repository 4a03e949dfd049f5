"""The section `parallel` of a configuration: how a run is spread over the processes that torchrun starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from longshort.parallel.mesh import Sizes, mesh_sizes
from longshort.train.values import ConfigError


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
    many as the other sizes leave. 1 keeps everything in each process (DDP)."""
    cp: int = 1
    """Processes that share each sequence. Only 1 so far."""
    reshard: bool = True
    """With dp_shard, free a block's gathered weights after its forward pass and gather them again in the backward pass:
    less memory, more communication."""
    reduce: str = "fp32"
    """With dp_shard, precision in which gradients are summed over processes: fp32 or bf16."""

    def sizes(self, world: int) -> Sizes:
        """The sizes for so many processes; an error says which would fit."""
        try:
            return mesh_sizes(world, dp_replicate=self.dp_replicate, dp_shard=self.dp_shard, cp=self.cp)
        except ValueError as error:
            raise ConfigError(str(error)) from None


def check_parallel(config: Any) -> None:
    """Raise where keys of `parallel` ask for what does not exist, or exclude keys of other sections."""
    parallel = config.parallel
    if parallel.cp != 1:
        raise ConfigError(
            f"parallel.cp must be 1, since the trainer does not divide sequences among processes yet, "
            f"got {parallel.cp}; parallel.dp_shard and run.checkpoint_activations=true save memory too"
        )
    if parallel.dp_shard != 1 and config.task.norm == "batch":
        raise ConfigError(
            f"task.norm must be layer with parallel.dp_shard={parallel.dp_shard}, since each process would have its "
            "own running means of the batch norms, got batch"
        )
