"""Times the attention of one decoding step, one new token and a full cache, against PyTorch's own attention.

    python -m benchmarks.decode_attention --out FILE.json --rounds 3

The rivals are two calls of `scaled_dot_product_attention`, the global head over everything and the local heads over the
last window, and one call over everything for all heads; what they read lies ready, and neither appends nor joins the
two outputs, which ours does. Each is first held to the reference. Our kernel is tried with some shapes of tile, and the
best of each problem goes into the table of `ops/decode/launch.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import gpu_timing as timing
from benchmarks.attention import machine, median_ratio
from benchmarks.decode_candidates import candidates, distinct, variants
from benchmarks.gpu_check import WrongResult, failure
from benchmarks.registry import GPU_SHAPES, Shape, chosen
from longshort.files import write_atomically, write_json
from longshort.heads import HeadPlan
from longshort.nn import StaticCache
from longshort.ops import attention

OURS, STATISTICS, TWO_CALLS, FULL = "longshort", "longshort + statistics", "two SDPA calls", "SDPA, all heads full"
GOAL, LIMIT_GOAL, LARGE_BYTES = 0.6, 3.0, 16e6
"""Of the two calls' time on every shape; times the limit of bandwidth where so many bytes are read."""

SHAPES = (
    *GPU_SHAPES,
    Shape(batch=32, heads=12, length=32768, head_dim=64, window=128),
    Shape(batch=16, heads=32, length=8192, head_dim=128, window=128),
)
"""The last two are for the table alone, where batches are large: the goals are those of the seven."""

_ALLOWED = 2e-2
"""Error of an output, relative to the larger of it and 1, in bf16."""
_CACHE_BYTES, _MOST_INPUTS = 240e6, 32
"""Inputs that take turns are together four times the second-level cache of an H200."""

_VARIED = 4
"""So many of the best shapes are tried with an early start and with tiles asked for in advance, too."""
_COMPILED_AHEAD = 300
"""Kernels; if there were more with the variants of all candidates, those of the best are compiled when tried."""


@dataclass
class _Inputs:
    """q (B, H, 1, D), and what the global head and the local ones see, the new token last."""

    q: Tensor
    whole: tuple[Tensor, Tensor]
    near: tuple[Tensor, Tensor]

    @property
    def nbytes(self) -> int:
        """That one step has to move: everything read once, the output written once."""
        return 2 * self.q.nbytes + sum(x.nbytes for x in (*self.whole, *self.near))

    def expected(self) -> Tensor:
        far, near = _exact(self.q[:, :1], *self.whole), _exact(self.q[:, 1:], *self.near)
        return torch.cat((far, near), dim=1)


def _exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    plan = HeadPlan.full(q.shape[1])
    return attention(q.float(), k.float(), v.float(), plan, backend="reference").out


def _normal(shape: Shape, device: str, seed: int) -> Callable[[int, int], Tensor]:
    """Draws (B, heads, length, D)."""
    generator = torch.Generator(device).manual_seed(seed)
    options: Any = {"device": device, "dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    return lambda heads, n: torch.randn((shape.batch, heads, n, shape.head_dim), generator=generator, **options)


def draw(shape: Shape, device: str, seed: int) -> _Inputs:
    normal = _normal(shape, device, seed)
    local, window = shape.heads - 1, min(shape.window, shape.length)
    whole, near = ((normal(heads, n), normal(heads, n)) for heads, n in ((1, shape.length), (local, window)))
    return _Inputs(normal(shape.heads, 1), whole, near)


def our_step(shape: Shape, inputs: _Inputs, *, stats: bool = False) -> Callable[[], Tensor]:
    """A step over a static cache that holds all but the last token; it may be taken again and again."""
    plan = shape.plan("ls")
    q, held = inputs.q, shape.length - 1
    cache = StaticCache(
        [plan],
        head_dim=shape.head_dim,
        batch_size=shape.batch,
        max_length=shape.length,
        rollback=0,
        dtype=q.dtype,
        device=q.device,
    )
    (layer,) = cache.layers
    for pool in layer.pools:
        for stored, given in zip((pool.k, pool.v), inputs.whole if pool.window is None else inputs.near, strict=True):
            past = given[:, :, :-1]
            where = torch.arange(held - past.shape[2], held, device=q.device) % stored.shape[2]
            stored[:, :, where] = past
    cache.advance(held)
    k, v = (torch.cat((a[:, :, -1:], b[:, :, -1:]), dim=1) for a, b in zip(inputs.whole, inputs.near, strict=True))
    return lambda: layer.attend(q, k, v, stats=stats, backend="triton").out


def two_calls(shape: Shape, inputs: _Inputs) -> Callable[[], tuple[Tensor, Tensor]]:
    far, near = inputs.q[:, :1].contiguous(), inputs.q[:, 1:].contiguous()
    attend = F.scaled_dot_product_attention
    return lambda: (attend(far, *inputs.whole), attend(near, *inputs.near))


@dataclass
class _Entrant:
    name: str
    calls: Sequence[Callable[[], Any]]
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around what is captured."""
    sample: timing.Sample = lambda: 0.0
    timing: str = ""
    error: float = 0.0
    milliseconds: list[float] = field(default_factory=list)

    def check(self, expected: Tensor) -> None:
        with self.within():
            out = self.calls[0]()
        out = torch.cat(out, dim=1) if isinstance(out, tuple) else out
        self.error = ((out.float() - expected).abs() / expected.abs().clamp_min(1)).max().item()
        if not self.error <= _ALLOWED:
            raise WrongResult(f"{self.name} is wrong: error {self.error:.1e} > {_ALLOWED:.0e}")

    def set_clock(self, device: str) -> None:
        with self.within():
            self.sample, self.timing = timing.repeated(self.calls, device)

    def run(self) -> None:
        with self.within():
            self.milliseconds.append(self.sample())


@torch.no_grad()
def measure(
    shape: Shape,
    *,
    device: str,
    rounds: int,
    bandwidth: float,
    tried: Iterable[tuple[int, int, int, float]] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """One shape: the search for the best tiles, then all entrants in turns."""
    from longshort.ops.decode.launch import DecodeShape, use

    first = draw(shape, device, 0)
    count = 1 if device == "cpu" else min(_MOST_INPUTS, math.ceil(_CACHE_BYTES / first.nbytes))
    drawn = [first, *(draw(shape, device, seed) for seed in range(1, count))]
    expected, steps = first.expected(), [our_step(shape, inputs) for inputs in drawn]
    numbers = candidates(shape.head_dim) if tried is None else tried
    look = partial(_search, steps=steps, expected=expected, device=device, progress=lambda s: progress(f"{shape} {s}"))
    search = look(numbers)
    if device == "cuda":
        varied = [row["shape"] for row in _served(search) if len(row["shape"]) == 4][:_VARIED]
        search += look([(*numbers, *variant) for numbers in varied for variant in variants()[1:]])
    best = _served(search)[0]["shape"]
    watched = [our_step(shape, inputs, stats=True) for inputs in drawn]
    rival = _Entrant(TWO_CALLS, [two_calls(shape, inputs) for inputs in drawn])
    entrants = [
        _Entrant(OURS, steps, lambda: use(DecodeShape(*best))),
        _Entrant(f"{OURS}, as the table has it", steps),
        _Entrant(STATISTICS, watched, lambda: use(DecodeShape(*best))),
        rival,
    ]
    for entrant in entrants:
        entrant.check(expected)
    entrants.append(_full(shape, device))
    for entrant in entrants:
        entrant.set_clock(device)
    for _ in range(rounds):
        for entrant in entrants:
            entrant.run()
    limit = 1e6 * first.nbytes / bandwidth
    about = {"shape": str(shape), "head_dim": shape.head_dim, "slots": shape.batch, "bytes": first.nbytes}
    rows = [_row(entrant, rival, limit) for entrant in entrants]
    return about | {"limit_microseconds": limit, "best": best, "search": search, "rows": rows}


def compile_ahead(shapes: Iterable[Shape], progress: Callable[[str], None] = lambda line: None) -> None:
    """Every candidate in processes side by side; what they compile goes to Triton's cache on disk."""
    plain = distinct(shapes, torch.cuda.get_device_properties(0).multi_processor_count)
    kinds: list[tuple[Any, ...]] = [()]
    if len(plain) * len(variants()) <= _COMPILED_AHEAD:
        kinds += variants()[1:]
    work = [(shape, (*numbers, *kind)) for kind in kinds for shape, numbers in plain if not kind or len(numbers) == 4]
    progress(f"compiling {len(work)} kernels")
    with get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        list(pool.imap_unordered(_compile, work))


@torch.no_grad()
def _compile(work: tuple[Shape, tuple[Any, ...]]) -> None:
    """In a process of its own; one that the GPU has no room for fails again, and is told of, in the search."""
    from longshort.ops.decode.launch import DecodeShape, use

    shape, numbers = work
    with use(DecodeShape(*numbers)):
        failure(our_step(shape, draw(shape, "cuda", 0)), required=False)


def _served(search: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that ran, the fastest first."""
    return sorted((row for row in search if row["failed"] is None), key=lambda row: row["microseconds"])


def _search(
    tried: Iterable[Sequence[Any]],
    steps: Sequence[Callable[[], Tensor]],
    expected: Tensor,
    device: str,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Microseconds of each shape of tile; one that the GPU has no room for says so."""
    from longshort.ops.decode.launch import DecodeShape, use

    search: list[dict[str, Any]] = []
    for numbers in tried:
        entrant = _Entrant(f"{OURS} {numbers}", steps, partial(use, DecodeShape(*numbers)))
        failed = failure(partial(_try, entrant, expected, device), required=False)
        microseconds = None if failed else 1e3 * entrant.milliseconds[0]
        search.append({"shape": list(numbers), "microseconds": microseconds, "failed": failed})
        progress(f"{numbers} {failed or f'{microseconds:.2f} us'}")
    return search


def _try(entrant: _Entrant, expected: Tensor, device: str) -> None:
    entrant.check(expected)
    entrant.set_clock(device)
    entrant.run()


def _full(shape: Shape, device: str) -> _Entrant:
    """All heads over everything, checked; one or two inputs are larger than the cache here."""
    normal = partial(_normal(shape, device, 0), shape.heads)
    size = 2 * shape.batch * shape.heads * shape.length * shape.head_dim * torch.bfloat16.itemsize
    count = 1 if device == "cpu" else math.ceil(_CACHE_BYTES / size)
    drawn = [(normal(1), normal(shape.length), normal(shape.length)) for _ in range(count)]
    entrant = _Entrant(FULL, [partial(F.scaled_dot_product_attention, *inputs) for inputs in drawn])
    entrant.check(_exact(*drawn[0]))
    return entrant


def _row(entrant: _Entrant, rival: _Entrant, limit: float) -> dict[str, Any]:
    microseconds = [1e3 * x for x in entrant.milliseconds]
    return {
        "name": entrant.name,
        "microseconds": microseconds,
        "timing": entrant.timing,
        "error": entrant.error,
        "ratio": median_ratio(entrant.milliseconds, rival.milliseconds),
        "limits": statistics.median(microseconds) / limit,
    }


def run(
    *,
    shapes: Iterable[Shape] = SHAPES,
    device: str = "cuda",
    rounds: int = 3,
    command: str = "",
    tried: Sequence[tuple[int, int, int, float]] | None = None,
    progress: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], object] = lambda results: None,
) -> dict[str, Any]:
    """Measure every shape; `keep` is given the results so far after each."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda needs a GPU, and PyTorch finds none")
    start, shapes = time.monotonic(), list(shapes)
    if device == "cuda" and tried is None:
        compile_ahead(shapes, progress)
    bandwidth = timing.copy_bandwidth(device, size=1 << (31 if device == "cuda" else 20))
    dtype = "bfloat16" if device == "cuda" else "float32"
    results: dict[str, Any] = {"machine": machine(device), "command": command, "rounds": rounds, "dtype": dtype}
    results |= {"copy_bandwidth": bandwidth, "seconds": 0.0, "shapes": []}
    for shape in shapes:
        results["shapes"].append(
            measure(shape, device=device, rounds=rounds, bandwidth=bandwidth, tried=tried, progress=progress)
        )
        results["seconds"] = round(time.monotonic() - start, 1)
        progress(f"{shape} done, {results['seconds']:.0f} s in all")
        keep(results)
    return results


def table(results: dict[str, Any]) -> str:
    """Markdown: microseconds and ratios by shape, the goals, and rows for the table of tuned shapes."""
    names = [row["name"] for row in results["shapes"][0]["rows"]]
    head = ["shape", "limit", *names, f"{OURS} / {TWO_CALLS}", f"{OURS} / limit", "best tiles"]
    lines = [head, ["---"] * len(head)]
    for shape in results["shapes"]:
        rows = {row["name"]: row for row in shape["rows"]}
        times = [f"{statistics.median(rows[name]['microseconds']):.1f}" for name in names]
        own = rows[OURS]
        compared = [f"{own['ratio']:.2f}", f"{own['limits']:.1f}", str(tuple(shape["best"]))]
        lines.append([shape["shape"], f"{shape['limit_microseconds']:.1f}", *times, *compared])
    more = {str(shape) for shape in SHAPES[len(GPU_SHAPES) :]}
    judged = [shape for shape in results["shapes"] if shape["shape"] not in more] or results["shapes"]
    own_rows = [(shape, next(row for row in shape["rows"] if row["name"] == OURS)) for shape in judged]
    ratio = max(row["ratio"] for _, row in own_rows)
    limits = [row["limits"] for shape, row in own_rows if shape["bytes"] >= LARGE_BYTES]
    goals = [
        f"- time / {TWO_CALLS}, every shape: {ratio:.2f} (goal <= {GOAL}: {'yes' if ratio <= GOAL else 'no'})",
        f"- time / limit, shapes of at least {LARGE_BYTES / 1e6:.0f} MB: "
        + (
            f"{max(limits):.1f} (goal <= {LIMIT_GOAL}: {'yes' if max(limits) <= LIMIT_GOAL else 'no'})"
            if limits
            else "-"
        ),
    ]
    tuned = [
        f"    ({shape['head_dim']}, {shape['slots']}, DecodeShape({', '.join(map(str, shape['best']))})),"
        for shape in results["shapes"]
    ]
    tables = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([tables, "\n".join(goals), "Rows for `TUNED`:", "\n".join(tuned)])


def save(results: dict[str, Any], path: Path) -> list[Path]:
    """Write the results as JSON, and as Markdown beside it."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    text = (
        f"# Attention of one decoding step\n\n    {results['command']}\n\n{about}; {results['dtype']}, "
        f"copies within the memory at {results['copy_bandwidth'] / 1e12:.2f} TB/s. Microseconds, medians of "
        f"{results['rounds']} rounds, in CUDA graphs, inputs in turns that the GPU's cache cannot hold. The limit is "
        "bytes, each read or written once, at the speed of a copy. "
        f"Ours appends the new token, too. Data: [{path.name}]({path.name})."
    )
    return [write_json(path, results), write_atomically(path.with_suffix(".md"), f"{text}\n\n{table(results)}\n")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode_attention", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; a Markdown file is written beside it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", help="numbers of shapes, counted from 0 and separated by commas; all if not given")
    given = parser.parse_args(arguments)
    try:
        results = run(
            shapes=chosen(SHAPES, given.shapes),
            rounds=given.rounds,
            command=f"python -m benchmarks.decode_attention --out {given.out.name} --rounds {given.rounds}",
            progress=lambda line: print(line, flush=True),
            keep=lambda results: save(results, given.out),
        )
    except ValueError as problem:
        sys.exit(f"error: {problem}")
    print(table(results))


if __name__ == "__main__":
    main()
