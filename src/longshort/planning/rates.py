"""How fast kernels run: measured on one H200, carried over to other GPUs in proportion to their peaks.

Each rate is the work that we count divided by the time that was measured, so that sums of such times come out at the
time of whole steps. tests/planning/test_rates.py works every one of them out from the files that it names.
"""

from __future__ import annotations

from typing import NamedTuple

from longshort.planning.figures import ASSUMED, MEASURED, Figure
from longshort.planning.machines import GPUS, Machines

REFERENCE = GPUS["h200"]
PROFILE = "step-profile-h200.txt"
KERNELS = "attention-gpu.json"

MATMUL = 699e12
"""FLOP/s of the matrix products of a 124M step: 24.3 TFLOP in 34.7 ms."""
STREAM = 2.79e12
"""Bytes per second of norms, activations and residual sums: 29.0 GB in 10.4 ms. Small matrix products are held to it
too."""
CROSS_ENTROPY = 2.53e12
"""Bytes per second of the kernel that turns logits into their gradient: 6.6 GB in 2.6 ms."""
ADAMW = 3.33e12
"""Bytes per second of fused AdamW, 28 bytes per weight."""
GAP = 90e-6
"""Seconds between the kernels of a block, forward and backward: 1.08 ms in 12 blocks."""


class Passes(NamedTuple):
    """A rate of the forward pass and one of the backward pass."""

    forward: float
    backward: float


GLOBAL = {32: Passes(325e12, 290e12), 64: Passes(420e12, 399e12), 128: Passes(543e12, 385e12)}
"""FLOP/s of our kernels in global heads, by head dim: 4 D per visible pair forward, 10 D backward."""
FULL = {32: Passes(325e12, 290e12), 64: Passes(472e12, 435e12), 128: Passes(663e12, 528e12)}
"""The same of full attention by the fastest kernel that was measured: ours at 32, else cuDNN."""
LOCAL = Passes(366e12, 285e12)
"""FLOP/s of local heads, whose pairs are counted in tiles: window + 128 keys per query."""
LOCAL_STREAM = Passes(2.75e12, 1.63e12)
"""Bytes per second of local heads, which bound short windows: 8 bytes per feature forward, 16 backward."""
TILE = 128


def by_head_dim(table: dict[int, Passes], head_dim: int) -> Passes:
    """The rates of the largest measured head dim that is not above this one."""
    return table[max((known for known in table if known <= head_dim), default=min(table))]


def carried(machines: Machines, *, bandwidth: bool = False) -> float:
    """By what a rate of the H200 is multiplied for another GPU."""
    if bandwidth:
        return machines.bandwidth / REFERENCE.bandwidth
    return machines.flops / REFERENCE.flops


def figures(machines: Machines, head_dim: int) -> list[Figure]:
    """The rates that a plan is made with."""
    same = machines.gpu == "h200"
    origin = MEASURED if same else ASSUMED
    scale, wide = carried(machines) / 1e12, carried(machines, bandwidth=True) / 1e12
    heads = by_head_dim(GLOBAL, head_dim)
    rows = [
        ("matrix products", MATMUL * scale, "TFLOP/s", PROFILE),
        ("global heads, forward", heads.forward * scale, "TFLOP/s", KERNELS),
        ("global heads, backward", heads.backward * scale, "TFLOP/s", KERNELS),
        ("local heads, forward", LOCAL_STREAM.forward * wide, "TB/s", KERNELS),
        ("local heads, backward", LOCAL_STREAM.backward * wide, "TB/s", KERNELS),
        ("norms, activations, sums", STREAM * wide, "TB/s", PROFILE),
        ("cross-entropy", CROSS_ENTROPY * wide, "TB/s", PROFILE),
        ("AdamW", ADAMW * wide, "TB/s", PROFILE),
        ("between the kernels of a block", 1e6 * GAP, "us", PROFILE),
    ]
    note = "" if same else ", an H200's by the ratio of the peaks"
    return [Figure(name=n, value=v, unit=u, origin=origin, note=source + note) for n, v, u, source in rows]
