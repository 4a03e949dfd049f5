"""Searches tile shapes of the Triton kernels on this GPU and writes the table that the kernels look them up in.

Candidates are compiled side by side in many processes, then timed one after another by CUDA graphs. A candidate whose
result differs from that of the untuned shapes is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks import gpu_timing
from benchmarks.attention import machine
from benchmarks.gpu_check import draw
from benchmarks.registry import GPU_SHAPES, Shape

CANDIDATES: dict[str, tuple[tuple[int | None, ...], ...]] = {
    "forward": (
        *((64, 64, 2, 4), (64, 64, 3, 4), (64, 32, 3, 4), (64, 64, 3, 4, 80), (64, 64, 2, 4, 96), (64, 32, 3, 4, 80)),
        (128, 128, 3, 8),
    ),
    "grad_q": ((64, 64, 2, 4), (64, 64, 3, 4), (64, 32, 3, 4), (64, 64, 2, 4, 128), (64, 64, 2, 4, 96)),
    "grad_kv": ((64, 64, 2, 4), (64, 64, 3, 4), (64, 64, 2, 4, 168), (32, 64, 3, 4), (64, 64, 2, 4, 128)),
}
"""Arguments of TileShape; what lost at every shape by more than a fifth is no longer tried."""
_CLOSE = 0.02
"""Largest difference from the untuned result, relative to its norm."""


class Job(NamedTuple):
    """One candidate at one shape."""

    kernel: str
    shape: Shape
    candidate: tuple[int | None, ...]
    which: str = "ls"
    """The plan: "ls", one global head and the rest local, or "local", those local heads alone."""
    parts: int = 0
    """Of a long head's walk; 0 leaves it to the launch."""

    @property
    def compiled_as(self) -> tuple[Any, ...]:
        """Sizes are no part of it."""
        return self.kernel, self.shape.head_dim, self.candidate


def run(*, shapes: tuple[Shape, ...] = GPU_SHAPES, progress: Callable[[str], None]) -> dict[str, Any]:
    """The table: for each kernel and shape the fastest candidate, with all times beside it."""
    if not torch.cuda.is_available():
        raise ValueError("--tune must run on a CUDA GPU, and torch sees none")
    jobs = [Job(kernel, shape, candidate) for shape in shapes for kernel, c in CANDIDATES.items() for candidate in c]
    alike = {job.compiled_as: job for job in jobs}
    progress(f"compiling {len(alike)} candidates")
    with get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        unfit = {key for key, fits in zip(alike, pool.imap(_compiles, alike.values()), strict=True) if not fits}
    rows = []
    for shape, which in product(shapes, ("ls", "local")):
        inputs = draw(shape, which, "cuda")
        for kernel in CANDIDATES:
            mine = [job._replace(which=which) for job in jobs if job.shape == shape and job.kernel == kernel]
            mine = [job for job in mine if job.compiled_as not in unfit]
            times = [(_microseconds(job, inputs), job.candidate) for job in mine]
            correct = sorted((us, candidate) for us, candidate in times if us is not None)
            progress(f"{shape} {which} {kernel}: {correct[0][1]} {correct[0][0]:.0f} us, the next {correct[1][0]:.0f}")
            rows.append(
                {
                    "device": torch.cuda.get_device_name(),
                    **{"kernel": kernel, "head_dim": shape.head_dim, "window": shape.window, "length": shape.length},
                    "local": which == "local",
                    "shape": list(correct[0][1]),
                    "microseconds": [[us, list(candidate)] for us, candidate in correct],
                }
            )
    return {"machine": machine(), "rows": rows}


def task(job: Job, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> Callable[[], list[Tensor]]:
    """What is compiled and timed: the forward launch, or the whole backward with this candidate for one kernel."""
    from longshort.ops.options import Options
    from longshort.ops.triton import backward, forward
    from longshort.ops.triton.tiles import TileShape, use

    q, k, v, grad = (x.detach() for x in inputs)
    options = Options.of(job.shape.plan(job.which))
    out, lse, _, _ = forward(q, k, v, options, None, False)
    shapes = {job.kernel: TileShape(*job.candidate)._replace(parts=job.parts)}  # type: ignore[arg-type]

    def call() -> list[Tensor]:
        with use(shapes):
            if job.kernel == "forward":
                return [forward(q, k, v, options, None, False)[0]]
            return list(backward(grad, q, k, v, out, lse, options, None))

    return call


def _compiles(job: Job) -> bool:
    """In a process of its own; the result goes to Triton's cache on disk."""
    small = Shape(batch=1, heads=2, length=2048, head_dim=job.shape.head_dim, window=job.shape.window)
    try:
        for parts in (1, 2):
            task(Job(job.kernel, small, job.candidate, parts=parts), draw(small, "ls", "cuda"))()
        torch.cuda.synchronize()
    except Exception as error:  # too much shared memory for this GPU, or too many registers
        if not any(word in f"{type(error).__name__} {error}" for word in ("OutOfResources", "PTX", "ptxas")):
            raise
        return False
    return True


def _microseconds(job: Job, inputs: tuple[Tensor, Tensor, Tensor, Tensor]) -> float | None:
    """None if the candidate's result is wrong."""
    call, untuned = task(job, inputs), task(job._replace(candidate=(64, 64, 2, 4), parts=0), inputs)
    for got, wanted in zip(call(), untuned(), strict=True):
        if not (got.float() - wanted.float()).norm() <= _CLOSE * wanted.float().norm():
            return None
    sample = gpu_timing.graphed([call])
    return 1e3 * sorted(sample() for _ in range(3))[1]
