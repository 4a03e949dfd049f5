"""The checkpoints of a run that may have several processes: what each of them does to save one, and to find the newest.

If the processes hold the whole model, rank 0 writes it, as in a run of one process; if each holds a part, all write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longshort.parallel.shards import is_sharded
from longshort.train.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    newest_complete,
    save_checkpoint,
)
from longshort.train.distributed import World


def save_together(
    folder: Path, model: nn.Module, world: World, *, step: int, trainer: dict[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Write the checkpoint of a step."""
    parts: dict[str, Any] = {"step": step, "model": model.state_dict(), "trainer": trainer, "state": dict(state)}
    if _is_divided(model):
        from longshort.train.sharded_checkpoint import save_sharded  # loads torch.distributed.checkpoint

        save_sharded(folder, world=world, **parts)
    elif world.is_writer:
        save_checkpoint(folder, **parts)


def newest_together(folder: Path, model: nn.Module, world: World, message: Callable[[str], None]) -> Checkpoint | None:
    """The newest complete checkpoint that rank 0 sees: in a folder on a network, others may see another one.

    Where each process holds a part of the model, its tensors are those parts.
    """
    if world.size == 1:
        return newest_checkpoint(folder, message)
    found = newest_complete(folder, message) if world.is_writer else None
    path = world.told(None if found is None else found[0])
    if path is None:
        return None
    if not _is_divided(model):
        return load_checkpoint(path)
    from longshort.train.sharded_checkpoint import read_sharded

    return read_sharded(path, dict(model.named_parameters()))


def _is_divided(model: nn.Module) -> bool:
    return any(map(is_sharded, model.parameters()))
