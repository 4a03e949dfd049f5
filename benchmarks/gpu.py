"""Times attention on a GPU in bf16, forward and backward alone, in CUDA graphs; `gpu_report` draws the conclusions.

Implementations take turns within a round. Forward is that of training: what backward needs is kept, by all alike. Each
implementation is first held to the reference; one that is wrong ends the benchmark, one that cannot run is a row that
says why.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import gpu_timing as timing
from benchmarks.attention import Row, compared, machine
from benchmarks.gpu_check import check, draw, failure
from benchmarks.gpu_peers import OURS, implementations
from benchmarks.gpu_report import DIRECTIONS, summarize
from benchmarks.registry import GPU_SHAPES, Attend, Implementation, Shape

Drawn = tuple[Tensor, Tensor, Tensor, Tensor]
"""q, k, v and a gradient for the output."""

_CACHE_BYTES, _MOST_INPUTS = 60e6, 32
"""The second-level cache of an H200, which nothing timed should find its inputs in."""


@dataclass(frozen=True)
class GpuRow(Row):
    """One implementation at one shape; `error` is that of outputs, relative to the larger of the output and 1."""

    gradient_error: float = 0.0
    """Largest norm of the error of a head's gradient, relative to the norm of the gradient."""
    timing: str = ""
    """graph; events where a call cannot be captured; clock on the CPU."""
    copy_share: float | None = None
    """Local heads, forward: bytes of q, k, v and output per second, relative to a copy within the GPU's memory."""
    memory: dict[str, float] | None = None
    """Ours, backward: `peak`, what a forward and backward adds to its inputs, and `results`, what it leaves; MiB."""


@dataclass
class _Entrant:
    """An implementation on its way through the benchmark of one shape."""

    implementation: Implementation
    drawn: Sequence[Drawn]
    """Several inputs, together larger than the GPU's cache."""
    attend: Attend = lambda q, k, v: q
    errors: tuple[float, float] = (0.0, 0.0)
    sample: timing.Sample = lambda: 0.0
    timing: str = ""
    milliseconds: list[float] = field(default_factory=list)
    failed: str | None = None

    def attempt(self, step: Callable[[], object]) -> None:
        """Take a step, unless an earlier one failed."""
        if self.failed is None:
            self.failed = failure(step, required=self.implementation.name.startswith(OURS))

    def prepare(self, shape: Shape) -> None:
        """Build and check."""
        self.attend = self.implementation.build(shape)
        self.errors = check(self.implementation, self.attend, shape, self.drawn[0][:3])

    def set_clock(self, direction: str, device: str) -> None:
        """Get ready to be timed."""
        self.milliseconds = []
        if direction == "forward":
            calls = [partial(self.attend, q, k, v) for q, k, v, _ in self.drawn]
            self.sample, self.timing = timing.repeated(calls, device)
            return
        *inputs, upstream = self.drawn[0]
        stream = torch.cuda.Stream() if device != "cpu" else None
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            leaves = [x.detach().requires_grad_() for x in inputs]  # whose graph belongs to this stream from the start
            out = self.attend(*leaves)
        call = partial(torch.autograd.grad, out, leaves, upstream, retain_graph=True)
        self.sample, self.timing = timing.repeated([call], device, stream=stream)

    def run(self) -> None:
        self.milliseconds.append(self.sample())


def run(
    *,
    shapes: Iterable[Shape] = GPU_SHAPES,
    entrants: Iterable[Implementation] | None = None,
    device: str = "cuda",
    rounds: int = 3,
    command: str = "",
    progress: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], object] = lambda results: None,
) -> dict[str, Any]:
    """Measure every implementation at every shape; `keep` is given the results so far after each shape."""
    require(device)
    start = time.monotonic()
    chosen = implementations(device) if entrants is None else tuple(entrants)
    bandwidth = timing.copy_bandwidth(device, size=1 << (31 if device == "cuda" else 20))
    progress(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s")
    results: dict[str, Any] = {
        "machine": machine(device),
        "command": command,
        "rounds": rounds,
        "dtype": "bfloat16",
        "copy_bandwidth": bandwidth,
        "seconds": 0.0,
        "summary": {},
        "rows": [],
    }
    for shape in shapes:
        results["rows"] += measure(shape, chosen, device=device, rounds=rounds, bandwidth=bandwidth, progress=progress)
        results["summary"] = summarize(results["rows"])
        results["seconds"] = round(time.monotonic() - start, 1)
        progress(f"{shape} done, {results['seconds']:.0f} s in all")
        keep(results)
    return results


def require(device: str) -> None:
    """Raise a ValueError where there is no such device."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda needs a GPU, and PyTorch finds none")


def measure(
    shape: Shape,
    chosen: Iterable[Implementation],
    *,
    device: str,
    rounds: int,
    bandwidth: float,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The rows of one shape, ready for JSON."""
    drawn = {work: _draw_several(shape, work, device) for work in sorted({i.work for i in chosen})}
    entrants = [_Entrant(i, drawn[i.work]) for i in chosen]
    for entrant in entrants:
        progress(f"{shape} checking {entrant.implementation.name} ({entrant.implementation.work})")
        entrant.attempt(partial(entrant.prepare, shape))
    rows: list[dict[str, Any]] = []
    for direction in DIRECTIONS:
        progress(f"{shape} {direction}")
        for entrant in entrants:
            entrant.attempt(partial(entrant.set_clock, direction, device))
        for _ in range(rounds):
            for entrant in entrants:
                entrant.attempt(entrant.run)
        measured = [_row(e, shape, direction, bandwidth, device) for e in entrants if e.failed is None]
        rows += [asdict(compared(row, measured)) for row in measured]
        failed = [_failed_row(e, shape, direction) for e in entrants if e.failed is not None]
        for row in failed:
            progress(f"{shape} {direction} failed: {row['name']} ({row['work']}): {row['failed']}")
        rows += failed
    return rows


def _row(entrant: _Entrant, shape: Shape, direction: str, bandwidth: float, device: str) -> GpuRow:
    work, name = entrant.implementation.work, entrant.implementation.name
    error, gradient_error = entrant.errors
    row = GpuRow(str(shape), work, name, direction, entrant.milliseconds, error)
    row = replace(row, gradient_error=gradient_error, timing=entrant.timing)
    if work == "local" and direction == "forward":
        moved = 4 * entrant.drawn[0][0].nbytes
        return replace(row, copy_share=moved / (1e-3 * statistics.median(entrant.milliseconds)) / bandwidth)
    if device == "cuda" and work == "ls" and name == OURS and direction == "backward":
        return replace(row, memory=_memory(entrant))
    return row


def _failed_row(entrant: _Entrant, shape: Shape, direction: str) -> dict[str, Any]:
    implementation = entrant.implementation
    named = {"shape": str(shape), "work": implementation.work, "name": implementation.name, "direction": direction}
    return named | {"failed": entrant.failed}


def _memory(entrant: _Entrant) -> dict[str, float]:
    q, k, v, upstream = entrant.drawn[0]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = entrant.attend(q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    peak = torch.cuda.max_memory_allocated() - before
    lse = 4 * out.numel() // out.shape[-1]
    results = out.nbytes + lse + sum(grad.nbytes for grad in grads)
    return {"peak": round(peak / 2**20, 1), "results": round(results / 2**20, 1)}


def _draw_several(shape: Shape, work: str, device: str) -> list[Drawn]:
    """As many inputs as make four times the cache; not very many where they are small."""
    first = draw(shape, work, device)
    size = sum(x.nbytes for x in first[:3])
    count = 1 if device == "cpu" else min(_MOST_INPUTS, math.ceil(4 * _CACHE_BYTES / size))
    return [first, *(draw(shape, work, device, seed=seed) for seed in range(1, count))]
