"""The checkpoints of a run that may have several processes: what each of them does to save one, and to find the newest.

If the processes hold the whole model, rank 0 writes it, as in a run of one process; if each holds a part, all write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longshort.parallel.shards import is_sharded
from longshort.train.checkpoints.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    newest_complete,
    save_checkpoint,
)
from longshort.train.machine.distributed import World


class Saver:
    """Writes checkpoints while training continues, one at a time, each from a copy on the host.

    A write that failed raises its error at the next call of a method. All processes of a run call `save` together. As a
    context, it waits for the last write to end.
    """

    def __init__(self, folder: Path, model: nn.Module, world: World) -> None:
        self._folder, self._model, self._world = folder, model, world
        # A group of its own: what the writers send each other must not meet what training sends.
        self._group = dist.new_group(backend="gloo") if _is_divided(model) else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(
        self,
        *,
        step: int,
        trainer: Mapping[str, Tensor],
        state: Mapping[str, Any],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy the model and the trainer's tensors, and start to write them; rank 0 calls `then` when that is done."""
        self.wait()
        if self._group is not None:
            from longshort.train.checkpoints.sharded import save_sharded  # loads torch.distributed.checkpoint

            write: Callable[..., Any] = partial(save_sharded, group=self._group)
        elif self._world.is_writer:
            write = save_checkpoint
        else:
            return
        parts: dict[str, Any] = {"model": _host_copy(self._model.state_dict()), "trainer": _host_copy(trainer)}
        parts |= {"step": step, "state": dict(state)}
        self._writing = self._thread.submit(self._write, write, then, parts)

    def _write(self, write: Callable[..., Any], then: Callable[[], None], parts: dict[str, Any]) -> None:
        if self._world.device.type == "cuda":
            torch.cuda.set_device(self._world.device)  # each thread has its own current device
        write(self._folder, **parts)
        if self._world.is_writer:
            then()

    def check(self) -> None:
        """Raise if the last write has failed."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is complete."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        if error is None:
            self.wait()
        elif self._writing is not None:
            wait([self._writing])  # the error that ended the run is the one to report
        self._thread.shutdown()


def _host_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy of what this process holds of each tensor, sharded as that is."""
    return {key: tensor.detach().to("cpu", copy=True) for key, tensor in tensors.items()}


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
    from longshort.train.checkpoints.sharded import read_sharded

    return read_sharded(path, dict(model.named_parameters()))


def _is_divided(model: nn.Module) -> bool:
    return any(map(is_sharded, model.parameters()))
