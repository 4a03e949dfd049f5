"""The machines of a plan: GPUs, their memory, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import NamedTuple

from longshort.planning.figures import ASSUMED, Figure

MOST_GPUS = 65_536


class GPU(NamedTuple):
    """A data sheet, and the network adapter that such GPUs usually have one each of."""

    memory: float
    """Bytes."""
    flops: float
    """Dense bf16 FLOP/s."""
    bandwidth: float
    """Bytes per second to its memory."""
    link: float
    """Bytes per second, in one direction, to other GPUs of its node."""
    network: float
    """Bytes per second, in one direction, to other nodes."""


GPUS = {
    "h200": GPU(141e9, 989e12, 4.8e12, 450e9, 50e9),
    "h100": GPU(80e9, 989e12, 3.35e12, 450e9, 50e9),
    "b200": GPU(180e9, 2250e12, 7.7e12, 900e9, 50e9),
    "a100": GPU(80e9, 312e12, 2.04e12, 300e9, 25e9),
    "l40s": GPU(48e9, 362e12, 0.864e12, 32e9, 12.5e9),
    "4090": GPU(24e9, 165e12, 1.008e12, 32e9, 12.5e9),
}
LINK_SHARE = 0.8
"""Share of a link's bandwidth that a collective reaches."""
LATENCY = 20e-6
"""Seconds before a collective sends its first byte."""
LATENCY_PER_RANK = 1e-6
"""Seconds that each further rank adds to it."""
RESERVE = 2.5e9
"""Bytes that CUDA, cuBLAS, NCCL and compiled code take beside PyTorch's tensors."""
FRAGMENTS = 0.05
"""Share of a GPU's memory that is lost between tensors."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """`gpus` equal GPUs, `per_node` of them in a node. Sizes that are not given are those of the GPU's data sheet.

    >>> Machines(gpu="h200", gpus=16).group_bandwidth(16, stride=1) / 1e9  # 8 adapters of 50 GB/s serve a ring
    320.0
    """

    gpu: str = "h200"
    gpus: int = 1
    per_node: int = 8
    memory: float | None = None
    """Bytes per GPU."""
    link: float | None = None
    """Bytes per second and direction within a node."""
    network: float | None = None
    """Bytes per second and direction between nodes, per GPU."""

    def __post_init__(self) -> None:
        if self.gpu not in GPUS:
            raise ValueError(f"gpu must be one of {', '.join(GPUS)}, got {self.gpu!r}")
        for name in ("gpus", "per_node"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= MOST_GPUS:
                raise ValueError(f"{name} must be an integer from 1 to {MOST_GPUS:,}, got {value!r}")
        for name in ("memory", "link", "network"):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, getattr(GPUS[self.gpu], name))
            elif not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number above 0, got {value!r}")

    def of(self, gpus: int) -> Machines:
        """As many GPUs of the same kind."""
        return replace(self, gpus=gpus)

    @property
    def flops(self) -> float:
        return GPUS[self.gpu].flops

    @property
    def bandwidth(self) -> float:
        return GPUS[self.gpu].bandwidth

    @property
    def room(self) -> float:
        """Bytes per GPU that tensors can have."""
        assert self.memory is not None
        return max(0.0, (1 - FRAGMENTS) * self.memory - RESERVE)

    def group_bandwidth(self, size: int, *, stride: int) -> float:
        """Bytes per second at which each of `size` ranks, `stride` apart, sends in a ring of them.

        Where the ring leaves a node, it does so through the adapters of all its ranks in that node: of those groups
        that have the fewest there, where all nodes are full.
        """
        assert self.link is not None and self.network is not None
        if self._within_nodes(size, stride):
            return LINK_SHARE * self.link
        inside = max(1, gcd(self.per_node, size * stride) // stride)
        return LINK_SHARE * min(self.link, inside * self.network)

    def crossing_bandwidth(self, size: int, *, stride: int) -> float:
        """The same where each rank sends to another node by itself."""
        assert self.link is not None and self.network is not None
        return LINK_SHARE * (self.link if self._within_nodes(size, stride) else min(self.link, self.network))

    def _within_nodes(self, size: int, stride: int) -> bool:
        """Whether no group crosses the edge of a node; groups of a stride fill size * stride neighbouring GPUs."""
        return self.gpus <= self.per_node or self.per_node % (size * stride) == 0

    def figures(self) -> list[Figure]:
        """What is assumed of the machines."""
        sheet = GPUS[self.gpu]

        def line(name: str, value: float, unit: str, given: bool, note: str) -> Figure:
            return Figure(name=name, value=value, unit=unit, origin=ASSUMED, note="as given" if given else note)

        assert self.memory is not None and self.link is not None and self.network is not None
        return [
            line("memory", self.memory / 1e9, "GB", self.memory != sheet.memory, "data sheet"),
            line("reserved of it", (self.memory - self.room) / 1e9, "GB", False, "CUDA, NCCL; 5 % between tensors"),
            line("peak in bf16", self.flops / 1e12, "TFLOP/s", False, "data sheet"),
            line("bandwidth of memory", self.bandwidth / 1e12, "TB/s", False, "data sheet"),
            line("link within a node", self.link / 1e9, "GB/s", self.link != sheet.link, "data sheet, one direction"),
            line("network", self.network / 1e9, "GB/s", self.network != sheet.network, "one adapter per GPU"),
            line("reached of a link", 100 * LINK_SHARE, "%", False, "a guess"),
            line("latency", 1e6 * LATENCY, "us", False, "a guess, and 1 us more per rank"),
        ]
