"""How the processes of a run are laid out: copies of the model, shards of each copy, shards of each sequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

REST = -1
"""A size that is what the other sizes leave."""


class Sizes(NamedTuple):
    """The sizes of a mesh, which multiply to the number of processes."""

    dp_replicate: int
    dp_shard: int
    cp: int

    @property
    def shards(self) -> int:
        """Processes that hold one copy of the model together: those that share sequences share it too."""
        return self.dp_shard * self.cp

    @property
    def readers(self) -> int:
        """Processes, or groups of `cp` neighbouring ones, that train on different sequences."""
        return self.dp_replicate * self.dp_shard


def mesh_sizes(world: int, *, dp_replicate: int = REST, dp_shard: int = 1, cp: int = 1) -> Sizes:
    """The sizes for `world` processes, -1 replaced by the rest; if both are -1, all that is left shards one copy.

    >>> [tuple(mesh_sizes(8, **given)) for given in ({}, {"dp_shard": -1}, {"dp_shard": 4}, {"cp": 8})]
    [(8, 1, 1), (1, 8, 1), (2, 4, 1), (1, 1, 8)]
    """
    if dp_replicate == dp_shard == REST:
        dp_replicate = 1
    given = Sizes(dp_replicate, dp_shard, cp)
    product = math.prod(size for size in given if size != REST)
    if REST in given and world % product == 0:
        rest = world // product
        return Sizes(*(rest if size == REST else size for size in given))
    if product != world:
        raise ValueError(_refusal(world, given, product))
    return given


def _refusal(world: int, given: Sizes, product: int) -> str:
    """Why the sizes do not fit the world, and what would."""
    sizes = " * ".join(f"parallel.{name}={size}" for name, size in given._asdict().items() if size != REST)
    rule = "divide" if REST in given else "be"
    started = f"{'a multiple of ' if REST in given else ''}{product} processes (torchrun --nproc-per-node)"
    left = world // given.cp
    fitting = [n for n in range(1, left + 1) if left % n == 0]
    shown = ", ".join(map(str, fitting if len(fitting) <= 8 else [*fitting[:7], "...", left]))
    way = f"parallel.dp_replicate=-1 and parallel.dp_shard of {shown}"
    if world % given.cp:
        way = f"a parallel.cp that divides {world}"
    return f"{sizes} must {rule} the number of processes, {world}, got {product}; {way} would fit, or start {started}"


def build_mesh(sizes: Sizes, device_type: str) -> DeviceMesh:
    """The mesh over which a model is sharded; with several copies of it, of two dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    if sizes.dp_replicate == 1:
        return init_device_mesh(device_type, (sizes.shards,), mesh_dim_names=("shard",))
    shape = (sizes.dp_replicate, sizes.shards)
    return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))


def sequence_group(sizes: Sizes, device_type: str) -> ProcessGroup:
    """The processes with which this one shares its sequences, in the order of their shards."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device_type, (sizes.readers, sizes.cp), mesh_dim_names=("dp", "cp"))
    return mesh.get_group("cp")
