"""Search for tile shapes of the Triton kernels on this GPU: those of attention, for the table that the kernels use, and
those of one decoding step, which `decode_step` measures.

Candidates are compiled in parallel in many processes, then timed one after another. A candidate for attention whose
result differs from that of the untuned shapes is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.attention import Drawn, draw
from benchmarks.harness import Entrant, machine, require, take_turns
from benchmarks.shapes import GPU_SHAPES, Shape

CANDIDATES: dict[str, tuple[tuple[int | None, ...], ...]] = {
    "forward": (
        *((64, 64, 2, 4), (64, 64, 3, 4), (64, 32, 3, 4), (64, 64, 3, 4, 80), (64, 64, 2, 4, 96), (64, 32, 3, 4, 80)),
        (128, 128, 3, 8),
    ),
    "grad_q": ((64, 64, 2, 4), (64, 64, 3, 4), (64, 32, 3, 4), (64, 64, 2, 4, 128), (64, 64, 2, 4, 96)),
    "grad_kv": ((64, 64, 2, 4), (64, 64, 3, 4), (64, 64, 2, 4, 168), (32, 64, 3, 4), (64, 64, 2, 4, 128)),
}
"""Arguments of TileShape, without those that were slower by more than a fifth at every shape."""
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
    """Parts of a long head's walk; 0 leaves it to the launch."""

    @property
    def compiled_as(self) -> tuple[Any, ...]:
        """What identifies the compiled kernel; sizes do not."""
        return self.kernel, self.shape.head_dim, self.candidate


T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], jobs: Sequence[T]) -> list[R]:
    """Run each job in one of many processes; what they compile goes to Triton's cache on disk."""
    with get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        return list(pool.imap(work, jobs))


def search(
    tried: Iterable[Sequence[Any]],
    prepare: Callable[[Entrant, Sequence[Any]], None],
    *,
    rounds: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Microseconds of each tile shape, prepared by `prepare`; a shape too large for the GPU is reported as such."""
    found: list[dict[str, Any]] = []
    for numbers in tried:
        entrant = Entrant(f"tiles {numbers}")
        entrant.attempt(partial(prepare, entrant, numbers))
        take_turns([entrant], rounds)
        microseconds = None if entrant.failed else 1e3 * entrant.median
        found.append({"shape": list(numbers), "microseconds": microseconds, "failed": entrant.failed})
        progress(f"{numbers} {entrant.failed or f'{microseconds:.2f} us'}")
    return found


def fastest(search: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The shapes that ran, fastest first."""
    return sorted((row for row in search if row["failed"] is None), key=lambda row: row["microseconds"])


def run(*, shapes: tuple[Shape, ...] = GPU_SHAPES, progress: Callable[[str], None]) -> dict[str, Any]:
    """The table for attention: the fastest candidate for each kernel and shape, with all times."""
    require("cuda")
    jobs = [Job(kernel, shape, candidate) for shape in shapes for kernel, c in CANDIDATES.items() for candidate in c]
    alike = {job.compiled_as: job for job in jobs}
    progress(f"compiling {len(alike)} candidates")
    fits = dict(zip(alike, side_by_side(_compiles, list(alike.values())), strict=True))
    rows = []
    for shape, which in product(shapes, ("ls", "local")):
        inputs = draw(shape, which, "cuda")
        for kernel in CANDIDATES:
            mine = [job for job in jobs if job.shape == shape and job.kernel == kernel and fits[job.compiled_as]]
            ready = partial(_prepare, Job(kernel, shape, (), which), inputs)
            times = fastest(search([job.candidate for job in mine], ready, rounds=3))
            best, second = times[:2]
            said = f"{tuple(best['shape'])} {best['microseconds']:.0f} us, the next {second['microseconds']:.0f}"
            progress(f"{shape} {which} {kernel}: {said}")
            rows.append(
                {
                    "device": torch.cuda.get_device_name(),
                    **{"kernel": kernel, "head_dim": shape.head_dim, "window": shape.window, "length": shape.length},
                    "local": which == "local",
                    "shape": best["shape"],
                    "microseconds": [[row["microseconds"], row["shape"]] for row in times],
                }
            )
    return {"machine": machine("cuda"), "rows": rows}


def _prepare(job: Job, inputs: Drawn, entrant: Entrant, candidate: Sequence[Any]) -> None:
    call = task(job._replace(candidate=tuple(candidate)), inputs)
    untuned = task(job._replace(candidate=(64, 64, 2, 4)), inputs)
    for got, wanted in zip(call(), untuned(), strict=True):
        if not (got.float() - wanted.float()).norm() <= _CLOSE * wanted.float().norm():
            raise RuntimeError("the result differs from that of the untuned shapes")
    entrant.sample = timing.graphed([call])


def task(job: Job, inputs: Drawn) -> Callable[[], list[Tensor]]:
    """What is compiled and timed: the forward launch, or the whole backward with this candidate for one kernel."""
    from longshort.ops.options import Options
    from longshort.ops.triton import backward, forward
    from longshort.ops.triton.tiles import TileShape, use

    q, k, v, grad = (x.detach() for x in inputs)
    options = Options.of(job.shape.plan(job.which))
    out, lse, _, _ = forward(q, k, v, options, None, 0)
    shapes = {job.kernel: TileShape(*job.candidate)._replace(parts=job.parts)}  # type: ignore[arg-type]

    def call() -> list[Tensor]:
        with use(shapes):
            if job.kernel == "forward":
                return [forward(q, k, v, options, None, 0)[0]]
            return list(backward(grad, q, k, v, out, lse, options, None)[:3])

    return call


def _compiles(job: Job) -> bool:
    """Runs in a separate process; the result goes to Triton's cache on disk."""
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


_DECODE_SIZES = ((64, 4, 3), (32, 4, 4), (64, 4, 4), (32, 4, 6), (16, 4, 6), (128, 4, 2), (128, 8, 2))
"""Columns at head dim 64 (in inverse proportion at other dims), warps, stages: each of those with four warps was among
the best at some shape in a wider search."""
_DECODE_PROGRAMS = (0.75, 1.0, 1.75, 2.0)
"""Programs of split heads per multiprocessor: one or two, or that less what the other heads take."""
_DECODE_BY_MATRIX = ((128, 4, 3),)
"""Sizes for the matrix units."""
_DECODE_VARIANTS = ((0, 0), (0, 1), (1, 1), (2, 1), (3, 1))
"""`early` and `fetch` of a `DecodeShape`."""
_COMPILED_AHEAD = 300
"""Most kernels compiled in advance; beyond it, variants are compiled when the best candidates are tried."""


def decode_candidates(head_dim: int) -> list[tuple[Any, ...]]:
    """Shapes worth trying at a head dim, as fields of a `DecodeShape`.

    Those by hand have four, and `decode_variants` follow; those by the matrix units have all.

    >>> len(decode_candidates(64)), decode_candidates(128)[0], decode_candidates(128)[-1]
    (32, (32, 4, 3, 0.75), (64, 4, 3, 2.0, 0, 1, True))
    """

    def sized(sizes: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        return list(dict.fromkeys((max(16, c * 64 // head_dim), warps, stages) for c, warps, stages in sizes))

    by_hand = [(*size, programs) for size in sized(_DECODE_SIZES) for programs in _DECODE_PROGRAMS]
    return by_hand + [
        (*size, programs, 0, 1, True) for size in sized(_DECODE_BY_MATRIX) for programs in _DECODE_PROGRAMS
    ]


def decode_variants() -> list[tuple[int, int]]:
    """Values of `early` and `fetch` that this GPU supports, the plain one first."""
    able = torch.cuda.get_device_capability() >= (9, 0)
    return [(early, fetch) for early, fetch in _DECODE_VARIANTS if able or not early]


def distinct_kernels(shapes: Iterable[Shape], processors: int) -> list[tuple[Shape, tuple[Any, ...]]]:
    """Candidates for the shapes, one for each kernel that they need."""
    from longshort.ops.decode.launch import joined_at_a_time, parts_of

    found: dict[tuple[object, ...], tuple[Shape, tuple[Any, ...]]] = {}
    for shape in shapes:
        for numbers in decode_candidates(shape.head_dim):
            columns, programs = numbers[0], numbers[3]
            parts = parts_of(-(-shape.length // columns), round(programs * processors) // shape.batch)
            kernel = (shape.head_dim, *numbers[:3], *numbers[4:], parts > 1, parts > joined_at_a_time(shape.head_dim))
            found.setdefault(kernel, (shape, numbers))
    return list(found.values())


def decode_kernels(shapes: Iterable[Shape]) -> list[tuple[Shape, tuple[Any, ...]]]:
    """The kernels worth compiling before the search over decoding shapes."""
    plain = distinct_kernels(shapes, torch.cuda.get_device_properties(0).multi_processor_count)
    kinds: list[tuple[Any, ...]] = [()]
    if len(plain) * len(decode_variants()) <= _COMPILED_AHEAD:
        kinds += decode_variants()[1:]
    return [(shape, (*numbers, *kind)) for kind in kinds for shape, numbers in plain if not kind or len(numbers) == 4]
