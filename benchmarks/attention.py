"""Attention against its peers, forward and backward: in fp32 by the clock on a CPU, in bf16 in CUDA graphs on a GPU.

Each implementation is first compared with the reference in fp32 on the same inputs. On a GPU, forward is that of
training (every implementation keeps what backward needs) and backward is timed alone; `attention_page` draws the
conclusions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.attention_page import CPU_PAGE, GPU_PAGE, summarize
from benchmarks.harness import DTYPES, OURS, Entrant, Recorder, WrongResult, median_ratio, require, take_turns
from benchmarks.pages import Results
from benchmarks.peers import Attend, Implementation, on_cpu, on_gpu
from benchmarks.shapes import SHAPES, Shape
from longshort.heads import HeadPlan
from longshort.ops import attention

Drawn = tuple[Tensor, Tensor, Tensor, Tensor]
"""q, k, v and a gradient for the output."""

DIRECTIONS = {"cpu": ("forward", "forward+backward"), "cuda": ("forward", "backward")}
ROUNDS = {"cpu": 5, "cuda": 3}

_OUTPUT_ERROR = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Largest accepted error of an output on standard normal inputs, relative to the larger of it and 1."""
_GRADIENT_ERROR = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
"""The same for gradients in fp32; in bf16 the norm of the error of a head's gradient, relative to the gradient's."""
_CACHE_BYTES, _MOST_INPUTS = 60e6, 32
"""The L2 cache of an H200, in which no timed call should find its inputs."""


def run(
    record: Recorder,
    *,
    shapes: Iterable[Shape] | None = None,
    implementations: Iterable[Implementation] | None = None,
    device: str = "cpu",
    rounds: int | None = None,
) -> Results:
    """Measure every implementation at every shape."""
    require(device)
    rounds = ROUNDS[device] if rounds is None else rounds
    usable = []
    for implementation in (on_gpu() if device == "cuda" else on_cpu()) if implementations is None else implementations:
        why = implementation.missing()
        if why is None:
            usable.append(implementation)
        else:
            record.progress(f"left out {implementation.name}: {why}")
    results = record.begin(
        GPU_PAGE if device == "cuda" else CPU_PAGE,
        device,
        conclude=lambda results: {"summary": summarize(results["rows"])} if device == "cuda" else {},
        rounds=rounds,
    )
    if device == "cuda" and "copy_bandwidth" not in results:
        results["copy_bandwidth"] = timing.copy_bandwidth(device)
    for shape in SHAPES[device] if shapes is None else shapes:
        options: dict[str, Any] = {"device": device, "rounds": rounds, "bandwidth": results.get("copy_bandwidth")}
        record.piece("rows", str(shape), partial(measure, shape, usable, progress=record.progress, **options))
    return record.end()


def measure(
    shape: Shape,
    implementations: Sequence[Implementation],
    *,
    device: str,
    rounds: int,
    bandwidth: float | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """The rows of one shape, ready for JSON."""
    drawn = {work: draw_several(shape, work, device) for work in sorted({i.work for i in implementations})}
    entrants = [Entrant(i.name, i.work, required=i.name.startswith(OURS)) for i in implementations]
    attends: dict[int, Attend] = {}

    def prepare(number: int) -> None:
        implementation, entrant = implementations[number], entrants[number]
        attends[number] = implementation.build(shape)
        inputs = drawn[entrant.work][0][:3]
        error, gradient_error = check(implementation, attends[number], shape, inputs)
        entrant.facts = {"error": error, "gradient_error": gradient_error}

    def set_clock(number: int, direction: str) -> None:
        entrant = entrants[number]
        entrant.sample, entrant.facts["timing"] = timer(attends[number], drawn[entrant.work], direction, device)

    for number, entrant in enumerate(entrants):
        progress(f"{shape} checking {entrant.name} ({entrant.work})")
        entrant.attempt(partial(prepare, number))
    rows: list[dict[str, Any]] = []
    for direction in DIRECTIONS[device]:
        progress(f"{shape} {direction}")
        for number, entrant in enumerate(entrants):
            entrant.attempt(partial(set_clock, number, direction))
        take_turns(entrants, rounds)
        for number, entrant in enumerate(entrants):
            row: dict[str, Any] = {
                "shape": str(shape),
                "work": entrant.work,
                "name": entrant.name,
                "direction": direction,
            }
            row |= entrant.row() | (_compared(entrant, entrants) if entrant.name == OURS else {})
            if entrant.failed is not None:
                progress(f"{shape} {direction} failed: {entrant.name} ({entrant.work}): {entrant.failed}")
            elif bandwidth and entrant.work == "local" and direction == "forward":
                row["copy_share"] = 4 * drawn["local"][0][0].nbytes / (1e-3 * entrant.median) / bandwidth
            elif device == "cuda" and (entrant.name, entrant.work, direction) == (OURS, "ls", "backward"):
                row["memory"] = _memory(attends[number], drawn["ls"][0])
            rows.append(row)
    return rows


def _compared(ours: Entrant, entrants: Sequence[Entrant]) -> dict[str, Any]:
    """The ratio to the peer that matters: LS against full attention, local heads against the fastest local peer."""
    work = "full" if ours.work == "ls" else ours.work
    peers = [peer for peer in entrants if peer.work == work and peer.name != ours.name and peer.failed is None]
    if ours.failed is not None or not peers:
        return {}
    peer = min(peers, key=lambda peer: peer.median)
    return {"speedup": median_ratio(peer.milliseconds, ours.milliseconds), "against": peer.name}


def timer(attend: Attend, drawn: Sequence[Drawn], direction: str, device: str) -> tuple[timing.Sample, str]:
    """A timer for one of `DIRECTIONS`, and its kind, as in `timing.repeated`."""
    *inputs, upstream = drawn[0]
    if device == "cpu":

        def forward() -> None:
            with torch.no_grad():
                attend(*inputs)

        def both() -> None:
            torch.autograd.grad(attend(*inputs), inputs, upstream)

        return timing.repeated([forward if direction == "forward" else both], device)
    if direction == "forward":
        return timing.repeated([partial(attend, q, k, v) for q, k, v, _ in drawn], device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        leaves = [x.detach().requires_grad_() for x in inputs]  # their graph must belong to this stream from the start
        out = attend(*leaves)
    call = partial(torch.autograd.grad, out, leaves, upstream, retain_graph=True)
    return timing.repeated([call], device, stream=stream)


def _memory(attend: Attend, drawn: Drawn) -> dict[str, float]:
    """MiB: `peak` is what a forward and backward adds to its inputs, `results` what it leaves."""
    q, k, v, upstream = drawn
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = attend(q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    peak = torch.cuda.max_memory_allocated() - before
    lse = 4 * out.numel() // out.shape[-1]
    results = out.nbytes + lse + sum(grad.nbytes for grad in grads)
    return {"peak": round(peak / 2**20, 1), "results": round(results / 2**20, 1)}


def draw(shape: Shape, work: str, device: str, *, seed: int = 0) -> Drawn:
    """q, k, v as leaves and a gradient for the output: standard normal, (B, H, T, D); on a GPU in (B, T, H, D) memory.

    It does not use the default generator, which a failed capture of a CUDA graph leaves unusable.
    """
    generator = torch.Generator(device).manual_seed(seed)
    heads = shape.plan(work).n_heads
    layout = torch.preserve_format if device == "cuda" else torch.contiguous_format

    def normal(heads: int) -> Tensor:
        size = (shape.batch, shape.length, heads, shape.head_dim)
        x = torch.randn(size, generator=generator, device=device, dtype=DTYPES[device])
        # A separate tensor with these strides: compilers fail on leaves that are views.
        return x.transpose(1, 2).clone(memory_format=layout)

    q, k, v, grad = (normal(count) for count in (heads, shape.kv_heads or heads, shape.kv_heads or heads, heads))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), grad


def draw_several(shape: Shape, work: str, device: str) -> list[Drawn]:
    """Enough inputs to fill four times the cache of a GPU, within a limit where they are small."""
    first = draw(shape, work, device)
    size = sum(x.nbytes for x in first[:3])
    count = 1 if device == "cpu" else min(_MOST_INPUTS, math.ceil(4 * _CACHE_BYTES / size))
    return [first, *(draw(shape, work, device, seed=seed) for seed in range(1, count))]


def check(
    implementation: Implementation, attend: Attend, shape: Shape, inputs: tuple[Tensor, Tensor, Tensor]
) -> tuple[float, float]:
    """Largest errors of outputs and of gradients; raises `WrongResult` if one is too large, or NaN.

    It checks outputs and gradients at a reduced length, and the first and last rows of the output at the shape itself,
    on `inputs`, with `attend`, the implementation built for that shape.
    """
    device, dtype = inputs[0].device.type, inputs[0].dtype
    short, gradient = _errors_when_short(implementation, shortened(shape, device), device)
    out = attend(*inputs).detach()  # recording gradients, as when timed, so that FlexAttention is compiled only once
    with torch.no_grad():
        q, k, v = (x.float() for x in inputs)
        ends = _both_ends(out, q, k, v, shape.plan(implementation.work))
        output = _largest([torch.tensor(short), *(_error(a, b) for a, b in ends)])
    found = (("output", output, _OUTPUT_ERROR[dtype]), ("gradient", gradient, _GRADIENT_ERROR[dtype]))
    for what, error, allowed in found:
        if not error <= allowed:
            where = f"{implementation.name} ({implementation.work}) is wrong at {shape}"
            raise WrongResult(f"{where}: {what} error {error:.1e} > {allowed:.0e}")
    return output, gradient


def shortened(shape: Shape, device: str) -> Shape:
    """The shape at a length of a few windows; on a GPU a multiple of 128, which every peer accepts."""
    step = 128 if device == "cuda" else 1
    return replace(shape, batch=2, length=min(shape.length, step * math.ceil((4 * shape.window + 37) / step)))


@cache  # several shapes share a shortened one, for which FlexAttention would be compiled again
def _errors_when_short(implementation: Implementation, shape: Shape, device: str) -> tuple[float, float]:
    q, k, v, upstream = draw(shape, implementation.work, device)
    out = implementation.build(shape)(q, k, v)
    grads = torch.autograd.grad(out, (q, k, v), upstream)
    exact = [x.detach().float().requires_grad_() for x in (q, k, v)]
    wanted = attention(exact[0], exact[1], exact[2], shape.plan(implementation.work), backend="reference").out
    wanted_grads = torch.autograd.grad(wanted, exact, upstream.float())
    measured = _error if q.dtype == torch.float32 else _error_of_norm
    gradient = _largest([measured(a, b) for a, b in zip(grads, wanted_grads, strict=True)])
    return _largest([_error(out.detach(), wanted.detach())]), gradient


def _both_ends(out: Tensor, q: Tensor, k: Tensor, v: Tensor, plan: HeadPlan) -> list[tuple[Tensor, Tensor]]:
    """The first and the last rows of the output, each with the reference: for all rows it would not fit in memory."""
    few = min(64, q.shape[2])
    first = attention(q[:, :, :few], k[:, :, :few], v[:, :, :few], plan, backend="reference").out
    last = attention(q[:, :, -few:], k, v, plan, backend="reference").out
    return [(out[:, :, :few], first), (out[:, :, -few:], last)]


def _error(out: Tensor, wanted: Tensor) -> Tensor:
    return ((out.float() - wanted).abs() / wanted.abs().clamp_min(1)).max()


def _error_of_norm(grad: Tensor, wanted: Tensor) -> Tensor:
    error, size = (torch.linalg.vector_norm(x, dim=(2, 3)) for x in (grad.float() - wanted, wanted))
    return (error / size).max()


def _largest(errors: list[Tensor]) -> float:
    """NaN if one of them is: Python's own max would drop it."""
    return torch.stack([error.cpu() for error in errors]).max().item()
