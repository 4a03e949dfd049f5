"""Which of several processes this is. Usually there is only one; `torchrun` starts several of the same command."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """One of `size` processes, with its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_writer(self) -> bool:
        """True on rank 0, the only process that writes files and prints."""
        return self.rank == 0

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of a tensor over all ranks, bit for bit the same on each."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
            value /= self.size
        return value

    def agree(self, flag: bool) -> bool:
        """True on all ranks if it is true on any."""
        if self.size == 1:
            return flag
        answer = torch.tensor(float(flag))  # on the host, so that nothing waits for the GPU
        dist.all_reduce(answer, op=dist.ReduceOp.MAX)
        return bool(answer.item())

    def told(self, value: Any) -> Any:
        """What rank 0 says, on all ranks: a small object, such as the name of a file."""
        if self.size == 1:
            return value
        said = [value]
        dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        return said[0]

    def wait(self) -> None:
        """Wait until all ranks get here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str) -> Iterator[World]:
    """Join the processes that torchrun started, and leave them at the end: tensors on the host travel by gloo, those on
    GPUs by NCCL.
    """
    size = _given("WORLD_SIZE", 1)
    rank, local = _given("RANK", 0), _given("LOCAL_RANK", 0)
    if not rank < size:
        raise ValueError(f"RANK must be below WORLD_SIZE={size}, got {rank}; torchrun sets both")
    if size > 1 and "MASTER_ADDR" not in os.environ:
        raise ValueError(f"WORLD_SIZE={size} needs MASTER_ADDR and MASTER_PORT too; torchrun sets them all")
    chosen = choose_device(device, local if size > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size > 1:
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=_unused_store(rank, size), rank=rank, world_size=size)
    try:
        yield World(rank, size, chosen)
    finally:
        if size > 1:
            dist.destroy_process_group()


def _given(name: str, default: int) -> int:
    """A number that torchrun sets."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be an integer of at least 0, as torchrun sets it, got {text!r}")
    return int(text)


def _unused_store(rank: int, size: int) -> dist.Store:
    """The store that processes exchange their addresses through, under a prefix that no earlier attempt has used.

    torchrun keeps one store for all attempts at a run, so a restarted process could read the address of a killed one
    (pytorch/pytorch#135712); and the restarts that it counts differ between machines. So rank 0 names the attempt. It
    tells each rank under a key that this rank has just made up, until the rank confirms it.
    """
    store, _, _ = next(dist.rendezvous("env://"))
    prefix = mine = uuid4().hex
    if rank > 0:
        store.set(f"rank/{rank}", mine)
        prefix = store.get(f"prefix/{mine}").decode()
        store.set(f"{prefix}/{rank}", "")
    waiting = set(range(1, size)) if rank == 0 else set()
    while waiting:
        for other in [other for other in waiting if store.check([f"rank/{other}"])]:
            store.set(f"prefix/{store.get(f'rank/{other}').decode()}", prefix)
        waiting = {other for other in waiting if not store.check([f"{prefix}/{other}"])}
        time.sleep(0.01)
    return dist.PrefixStore(prefix, store)


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device for a name: auto is CUDA if there is a GPU; a device asked for by name must exist."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device: torch.device | None = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device must be cpu or auto, since PyTorch finds no CUDA GPU, got {name!r}")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count()
    if local_rank is not None:
        if local_rank >= count:
            raise ValueError(
                f"LOCAL_RANK must be below {count}, the number of GPUs of this machine, got {local_rank}; start fewer "
                "processes on it"
            )
        return torch.device("cuda", local_rank)
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= count:
        raise ValueError(f"device must be a GPU of this machine, cuda:0 to cuda:{count - 1}, got {name!r}")
    return device
