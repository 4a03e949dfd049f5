"""Checkpoints of sharded runs: each process writes its shards, and any number of processes can read them.

`step-00000100/` holds a file of shards per process and `state.json`, whose checksums cover all of them. The functions
here are to be called by all processes of a run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from longshort.files import give_usual_mode
from longshort.parallel.shards import as_shard
from longshort.train.checkpoint import (
    FORMAT,
    SHARDED,
    Checkpoint,
    checksum,
    finish,
    new_draft,
    state_of,
    whole_tensors,
)
from longshort.train.distributed import World
from longshort.train.shard_files import joined_names, parameter_name, parted_names, read_shards, write_shards


def save_sharded(
    folder: Path,
    *,
    step: int,
    model: Mapping[str, Tensor],
    trainer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    world: World,
) -> None:
    """Write `folder/step-N`; an interrupted write leaves no such folder."""
    draft = Path(world.told(str(new_draft(folder, step, "shards")) if world.is_writer else None))
    try:
        write_shards(draft, model, trainer)
        sums: list[dict[str, str]] = [{}] * world.size
        dist.all_gather_object(sums, {path.name: checksum(path) for path in _own_files(draft, world)})
        if world.is_writer:
            together = {name: total for part in sums for name, total in part.items()}
            finish(draft, step, {"format": SHARDED, "sha256": together, "step": step, **state})
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)  # on a full disk its space is needed
        raise
    world.wait()


def _own_files(draft: Path, world: World) -> list[Path]:
    """The files that this process wrote, which have its number."""
    files = sorted(draft.glob(f"shard-{world.rank + 1:05d}-*"))
    for path in files:
        give_usual_mode(path)
    return files


def read_sharded(path: Path, parameters: Mapping[str, Tensor]) -> Checkpoint:
    """A checkpoint of either format, verified by rank 0, each tensor sharded like the parameter it belongs to: only the
    rows of this process are kept.
    """
    state = state_of(path)

    def parameter_of(key: str, shape: torch.Size) -> Tensor | None:
        """None for counters, running means and buffers."""
        parameter = parameters.get(parameter_name(key))
        return parameter if parameter is not None and parameter.shape == shape else None

    if state.get("format", FORMAT) == SHARDED:
        tensors = read_shards(path, parameter_of)
    else:
        whole = joined_names(*whole_tensors(path, state))
        tensors = parted_names({key: as_shard(x, parameter_of(key, x.shape)) for key, x in whole.items()})
    return Checkpoint(path, int(state["step"]), *tensors, state)
