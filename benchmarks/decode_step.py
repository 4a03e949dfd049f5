"""The attention of one decoding step, one new token and a full cache, against PyTorch's own attention.

The rivals are two calls of `scaled_dot_product_attention`, the global head over everything and the local heads over the
last window, and one call over everything for all heads. Their inputs are prepared in advance, and they neither append
the new token nor join the two outputs, which ours does. Each is first compared with the reference. Our kernel is tried
with several tile shapes, and the best for each problem goes into the table of `ops/decode/launch.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import timing, tune
from benchmarks.harness import DTYPES, OURS, Entrant, Recorder, WrongResult, failure, median_ratio, require, take_turns
from benchmarks.pages import Page, Results, markdown
from benchmarks.shapes import GPU_SHAPES, LARGE_BATCHES, Shape
from longshort.heads import HeadPlan
from longshort.nn import LSStaticCache
from longshort.ops import attention

STATISTICS, TWO_CALLS, FULL = "longshort + statistics", "two SDPA calls", "SDPA, all heads full"
SHAPES = (*GPU_SHAPES, *LARGE_BATCHES)
_GOAL, _LIMIT_GOAL, _LARGE_BYTES = 0.6, 3.0, 16e6
"""Goals: share of the two calls' time on every shape; multiple of the bandwidth limit from this many bytes on."""
_ALLOWED = 2e-2
"""Largest accepted error of an output, relative to the larger of it and 1, in bf16."""
_CACHE_BYTES, _MOST_INPUTS = 240e6, 32
"""Inputs that take turns add up to four times the L2 cache of an H200."""
_VARIED = 4
"""Number of best shapes that are also tried with an early start and with prefetched tiles."""

Calls = Sequence[Callable[[], Any]]
Context = Callable[[], AbstractContextManager[None]]


@dataclass
class StepInputs:
    """q (B, H, 1, D), and what the global head and the local ones see, the new token last."""

    q: Tensor
    whole: tuple[Tensor, Tensor]
    near: tuple[Tensor, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes that one step must move: everything read once, the output written once."""
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
    options: Any = {"device": device, "dtype": DTYPES[device]}
    return lambda heads, n: torch.randn((shape.batch, heads, n, shape.head_dim), generator=generator, **options)


def draw(shape: Shape, device: str, seed: int) -> StepInputs:
    normal = _normal(shape, device, seed)
    local, window = shape.heads - 1, min(shape.window, shape.length)
    whole, near = ((normal(heads, n), normal(heads, n)) for heads, n in ((1, shape.length), (local, window)))
    return StepInputs(normal(shape.heads, 1), whole, near)


def our_step(shape: Shape, inputs: StepInputs, *, stats: bool = False) -> Callable[[], Tensor]:
    """A step over a static cache that holds all but the last token; it can be repeated."""
    plan = shape.plan("ls")
    q, held = inputs.q, shape.length - 1
    cache = LSStaticCache(
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


def two_calls(inputs: StepInputs) -> Callable[[], tuple[Tensor, Tensor]]:
    far, near = inputs.q[:, :1].contiguous(), inputs.q[:, 1:].contiguous()
    attend = F.scaled_dot_product_attention
    return lambda: (attend(far, *inputs.whole), attend(near, *inputs.near))


def _prepare(entrant: Entrant, calls: Calls, expected: Tensor, device: str, within: Context = nullcontext) -> None:
    """Check the first call, then prepare for timing; `within` wraps what is called and captured."""
    with within():
        out = calls[0]()
        out = torch.cat(out, dim=1) if isinstance(out, tuple) else out
        error = ((out.float() - expected).abs() / expected.abs().clamp_min(1)).max().item()
        if not error <= _ALLOWED:
            raise WrongResult(f"{entrant.name} is wrong: error {error:.1e} > {_ALLOWED:.0e}")
        sample, kind = timing.repeated(calls, device)

    def inside() -> float:
        with within():
            return sample()

    entrant.sample, entrant.facts = inside, {"timing": kind, "error": error}


def run(
    record: Recorder,
    *,
    shapes: Sequence[Shape] = SHAPES,
    device: str = "cuda",
    rounds: int = 3,
    tried: Sequence[tuple[int, int, int, float]] | None = None,
) -> Results:
    """Measure every shape."""
    require(device)
    if device == "cuda" and tried is None:
        work = tune.decode_kernels(shapes)
        record.progress(f"compiling {len(work)} kernels")
        tune.side_by_side(_compile, work)
    results = record.begin(PAGE, device, rounds=rounds)
    if "copy_bandwidth" not in results:
        results["copy_bandwidth"] = timing.copy_bandwidth(device, size=1 << (31 if device == "cuda" else 20))
    for shape in shapes:
        options: dict[str, Any] = {"rounds": rounds, "bandwidth": results["copy_bandwidth"], "tried": tried}
        record.piece("shapes", str(shape), partial(_measure, shape, device, progress=record.progress, **options))
    return record.end()


@torch.no_grad()
def _measure(
    shape: Shape,
    device: str,
    *,
    rounds: int,
    bandwidth: float,
    tried: Iterable[tuple[int, int, int, float]] | None,
    progress: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One shape: the search for the best tiles, then all entrants in turns."""
    from longshort.ops.decode.launch import DecodeShape, use

    first = draw(shape, device, 0)
    count = 1 if device == "cpu" else min(_MOST_INPUTS, math.ceil(_CACHE_BYTES / first.nbytes))
    drawn = [first, *(draw(shape, device, seed) for seed in range(1, count))]
    expected, steps = first.expected(), [our_step(shape, inputs) for inputs in drawn]

    def tile(entrant: Entrant, numbers: Sequence[Any]) -> None:
        _prepare(entrant, steps, expected, device, partial(use, DecodeShape(*numbers)))

    look = partial(tune.search, prepare=tile, progress=lambda line: progress(f"{shape} {line}"))
    search = look(tune.decode_candidates(shape.head_dim) if tried is None else tried)
    if device == "cuda":
        varied = [row["shape"] for row in tune.fastest(search) if len(row["shape"]) == 4][:_VARIED]
        search += look([(*numbers, *variant) for numbers in varied for variant in tune.decode_variants()[1:]])
    best = tune.fastest(search)[0]["shape"]
    tuned = partial(use, DecodeShape(*best))
    watched = [our_step(shape, inputs, stats=True) for inputs in drawn]
    full, all_of_full = _full(shape, device)
    contenders: list[tuple[str, Calls, Tensor, Context]] = [
        (OURS, steps, expected, tuned),
        (f"{OURS}, as the table has it", steps, expected, nullcontext),
        (STATISTICS, watched, expected, tuned),
        (TWO_CALLS, [two_calls(inputs) for inputs in drawn], expected, nullcontext),
        (FULL, full, all_of_full, nullcontext),
    ]
    entrants = [Entrant(name, required=True) for name, *_ in contenders]
    for entrant, (_, calls, wanted, within) in zip(entrants, contenders, strict=True):
        entrant.attempt(partial(_prepare, entrant, calls, wanted, device, within))
    take_turns(entrants, rounds)
    limit = 1e6 * first.nbytes / bandwidth
    rival = next(entrant for entrant in entrants if entrant.name == TWO_CALLS)
    about = {"shape": str(shape), "head_dim": shape.head_dim, "slots": shape.batch, "bytes": first.nbytes}
    rows = [_row(entrant, rival, limit) for entrant in entrants]
    return [about | {"limit_microseconds": limit, "best": best, "search": search, "rows": rows}]


@torch.no_grad()
def _compile(work: tuple[Shape, tuple[Any, ...]]) -> None:
    """Runs in a separate process. A kernel too large for the GPU fails again in the search, which reports it."""
    from longshort.ops.decode.launch import DecodeShape, use

    shape, numbers = work
    with use(DecodeShape(*numbers)):
        failure(our_step(shape, draw(shape, "cuda", 0)), required=False)


def _full(shape: Shape, device: str) -> tuple[Calls, Tensor]:
    """All heads over everything, and the expected result of the first call; one or two inputs exceed the cache here."""
    normal = partial(_normal(shape, device, 0), shape.heads)
    size = 2 * shape.batch * shape.heads * shape.length * shape.head_dim * torch.bfloat16.itemsize
    count = 1 if device == "cpu" else math.ceil(_CACHE_BYTES / size)
    drawn = [(normal(1), normal(shape.length), normal(shape.length)) for _ in range(count)]
    return [partial(F.scaled_dot_product_attention, *inputs) for inputs in drawn], _exact(*drawn[0])


def _row(entrant: Entrant, rival: Entrant, limit: float) -> dict[str, Any]:
    return {
        "name": entrant.name,
        "microseconds": [1e3 * ms for ms in entrant.milliseconds],
        **entrant.facts,
        "ratio": median_ratio(entrant.milliseconds, rival.milliseconds),
        "limits": 1e3 * entrant.median / limit,
    }


def tables(results: Results) -> str:
    """Microseconds and ratios by shape, the goals, and entries for the table of tuned shapes."""
    shapes = results["shapes"]
    names = [row["name"] for row in shapes[0]["rows"]]
    header = ("shape", "limit", *names, f"{OURS} / {TWO_CALLS}", f"{OURS} / limit", "best tiles")
    lines = []
    for shape in shapes:
        rows = {row["name"]: row for row in shape["rows"]}
        times = [f"{statistics.median(rows[name]['microseconds']):.1f}" for name in names]
        compared = [f"{rows[OURS]['ratio']:.2f}", f"{rows[OURS]['limits']:.1f}", str(tuple(shape["best"]))]
        lines.append([shape["shape"], f"{shape['limit_microseconds']:.1f}", *times, *compared])
    tuned = [f"    ({s['head_dim']}, {s['slots']}, DecodeShape({', '.join(map(str, s['best']))}))," for s in shapes]
    pieces = [markdown(header, lines), *_older(shapes), _goals(shapes), "Entries for `TUNED`:", "\n".join(tuned)]
    return "\n\n".join(pieces)


def _older(shapes: Sequence[dict[str, Any]]) -> list[str]:
    """A sentence about shapes whose numbers were taken over from an earlier commit, with its table of tiles."""
    commits: dict[str, list[str]] = {}
    for shape in shapes:
        if "commit" in shape:
            commits.setdefault(shape["commit"], []).append(shape["shape"])
    return [
        f"{' and '.join(names)}: measured at commit {commit}, and `as the table has it` is with its table of tiles."
        for commit, names in commits.items()
    ]


def _goals(shapes: Sequence[dict[str, Any]]) -> str:
    """Goals for the seven shapes; those with large batches are only there to tune tiles."""
    more = {str(shape) for shape in LARGE_BATCHES}
    judged = [shape for shape in shapes if shape["shape"] not in more] or shapes
    own = [(shape, next(row for row in shape["rows"] if row["name"] == OURS)) for shape in judged]
    ratio = max(row["ratio"] for _, row in own)
    limit = max((row["limits"] for shape, row in own if shape["bytes"] >= _LARGE_BYTES), default=None)

    def judged_as(value: float | None, digits: int, goal: float) -> str:
        return "-" if value is None else f"{value:.{digits}f} (goal <= {goal}: {'yes' if value <= goal else 'no'})"

    return (
        f"- time / {TWO_CALLS}, every shape but the large batches: {judged_as(ratio, 2, _GOAL)}\n"
        f"- time / limit, shapes of at least {_LARGE_BYTES / 1e6:.0f} MB: {judged_as(limit, 1, _LIMIT_GOAL)}"
    )


def _about(results: Results) -> str:
    return f"""{results["dtype"]}, copies within the GPU's memory run at {results["copy_bandwidth"] / 1e12:.2f} TB/s.
Microseconds, medians of {results["rounds"]} rounds, in CUDA graphs; inputs take turns so that the GPU's cache cannot
hold them. The limit is the time to read or write each byte once at the speed of a copy. Ours also appends the token."""


PAGE = Page(
    name="decode-attention",
    title="Attention of one decoding step",
    command="python -m benchmarks decoding --attention --rounds 3 --out benchmarks/results/decode-attention.json",
    about=_about,
    tables=tables,
)
