"""Checkpoints of sharded runs: each process writes its shards, and any number of processes can read them.

`step-00000100/` holds a file of shards per process and `state.json`, whose checksums cover all of them. The functions
here are to be called by all processes of a run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from longshort.files import give_usual_mode, sha256
from longshort.parallel.shards import as_shard
from longshort.train.checkpoints.checkpoint import (
    SHARDED,
    Checkpoint,
    finish,
    new_draft,
    state_of,
    whole_tensors,
)
from longshort.train.checkpoints.shard_files import (
    joined_names,
    parameter_name,
    parted_names,
    read_shards,
    write_shards,
)


def save_sharded(
    folder: Path,
    *,
    step: int,
    model: Mapping[str, Tensor],
    trainer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    group: dist.ProcessGroup,
) -> None:
    """Write `folder/step-N`, the processes of `group`, a gloo group of all, together; an interrupted write leaves no
    such folder, and if it fails in one process it fails in all.
    """
    rank = group.rank()
    draft = Path(_from_first(group, lambda: str(new_draft(folder, step, "shards"))))
    try:
        write_shards(draft, model, trainer, group)
        sums: list[dict[str, str]] = [{}] * group.size()
        dist.all_gather_object(sums, {path.name: sha256(path) for path in _own_files(draft, rank)}, group)
        together = {name: total for part in sums for name, total in part.items()}
        document = {"format": SHARDED, "sha256": together, "step": step, **state}
        _from_first(group, lambda: str(finish(draft, step, document)))
    except BaseException:
        if rank == 0:  # another might remove what the first is just giving its name
            shutil.rmtree(draft, ignore_errors=True)  # on a full disk its space is needed
        raise


def _from_first(group: dist.ProcessGroup, work: Callable[[], str]) -> str:
    """What `work` returns on the first process of the group, on all of them; an error there is an error on all."""
    said: list[Any] = [None]
    if group.rank() == 0:
        try:
            said = [work()]
        except Exception as error:
            said = [error]
    dist.broadcast_object_list(said, src=0, group=group, device=torch.device("cpu"))
    if isinstance(said[0], Exception):
        raise said[0]
    return said[0]


def _own_files(draft: Path, rank: int) -> list[Path]:
    """The files that this process wrote, which have its number."""
    files = sorted(draft.glob(f"shard-{rank + 1:05d}-*"))
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

    if state["format"] == SHARDED:
        tensors = read_shards(path, parameter_of)
    else:
        whole = joined_names(*whole_tensors(path, state))
        tensors = parted_names({key: as_shard(x, parameter_of(key, x.shape)) for key, x in whole.items()})
    return Checkpoint(path, int(state["step"]), *tensors, state)
