"""Times attention implementations against each other, each row behind a correctness check against the reference.

Machines are noisy: implementations take turns within a round, a row is the median over rounds, and ratios are medians
of the ratios within a round.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import CPU_IMPLEMENTATIONS, CPU_SHAPES, Attend, Implementation, Shape
from longshort.files import write_atomically, write_json
from longshort.heads import HeadPlan
from longshort.ops import attention

_TOLERANCE = 2e-5
"""Largest accepted absolute error in fp32 on standard normal inputs."""


@dataclass(frozen=True)
class Row:
    """One implementation at one shape."""

    shape: str
    work: str
    name: str
    direction: str
    milliseconds: list[float]
    error: float
    """Largest absolute difference from the reference, outputs and gradients."""
    speedup: float | None = None
    """How many times faster than the row it is compared with; the median of the rounds' ratios."""
    against: str | None = None


def run(
    *,
    shapes: Iterable[Shape] = CPU_SHAPES,
    implementations: Iterable[Implementation] = CPU_IMPLEMENTATIONS,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure every implementation at every shape; returns versions, machine and rows, ready for JSON."""
    rows: list[Row] = []
    usable = []
    for implementation in implementations:
        why = implementation.missing()
        if why is None:
            usable.append(implementation)
        else:
            progress(f"left out {implementation.name}: {why}")
    for shape in shapes:
        built = [(implementation, implementation.build(shape)) for implementation in usable]
        errors = [check(implementation, shape) for implementation in usable]
        for direction in ("forward", "forward+backward"):
            progress(f"{shape} {direction}")
            times = _take_turns([_task(attend, i.work, shape, direction) for i, attend in built], rounds)
            measured = [
                Row(str(shape), i.work, i.name, direction, ms, error)
                for (i, _), ms, error in zip(built, times, errors, strict=True)
            ]
            rows += [compared(row, measured) for row in measured]
    return {"machine": machine(), "rounds": rounds, "dtype": "float32", "rows": [asdict(row) for row in rows]}


def check(implementation: Implementation, shape: Shape) -> float:
    """Largest error of outputs and gradients at a reduced length, and of outputs at the shape; raises if large."""
    short = replace(shape, batch=min(2, shape.batch), length=min(shape.length, 4 * shape.window + 37))
    q, k, v = _inputs(short, implementation.work)
    plan, upstream = shape.plan(implementation.work), torch.randn_like(q)
    ours = implementation.build(short)(q, k, v)
    theirs = attention(q, k, v, plan, backend="reference").out
    pairs = [(ours, theirs)]
    pairs += zip(
        torch.autograd.grad(ours, (q, k, v), upstream),
        torch.autograd.grad(theirs, (q, k, v), upstream),
        strict=True,
    )
    with torch.no_grad():
        q, k, v = _inputs(shape, implementation.work)
        pairs += both_ends(implementation.build(shape)(q, k, v), q, k, v, plan)
    error = max((a - b).abs().max().item() for a, b in pairs)
    if not error <= _TOLERANCE:
        raise RuntimeError(
            f"{implementation.name} ({implementation.work}) is wrong at {shape}: error {error:.1e} > {_TOLERANCE:.0e}"
        )
    return error


def both_ends(out: Tensor, q: Tensor, k: Tensor, v: Tensor, plan: HeadPlan) -> list[tuple[Tensor, Tensor]]:
    """The first and the last rows of the output, each beside the reference: all rows would not fit in memory."""
    few = min(64, q.shape[2])
    first = attention(q[:, :, :few], k[:, :, :few], v[:, :, :few], plan, backend="reference").out
    last = attention(q[:, :, -few:], k, v, plan, backend="reference").out
    return [(out[:, :, :few], first), (out[:, :, -few:], last)]


def machine(device: str = "cpu") -> dict[str, Any]:
    """What a reader needs to place the numbers; on a GPU, its name and the versions that its speed depends on."""
    gpu: dict[str, Any] = {}
    if device != "cpu":
        triton = import_module("triton").__version__
        gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "triton": triton}
    return gpu | {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _inputs(shape: Shape, work: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch, shape.plan(work).n_heads, shape.length, shape.head_dim)
    q, k, v = (torch.randn(size, generator=generator).requires_grad_() for _ in range(3))
    return q, k, v


def _task(attend: Attend, work: str, shape: Shape, direction: str) -> Callable[[], None]:
    q, k, v = _inputs(shape, work)
    upstream = torch.randn_like(q)

    def forward() -> None:
        with torch.no_grad():
            attend(q, k, v)

    def both() -> None:
        torch.autograd.grad(attend(q, k, v), (q, k, v), upstream)

    return forward if direction == "forward" else both


def _take_turns(tasks: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Milliseconds of each task in each round; one warm-up round before."""
    times: list[list[float]] = [[] for _ in tasks]
    for turn in range(rounds + 1):
        for task, taken in zip(tasks, times, strict=True):
            gc.collect()
            start = time.perf_counter()
            task()
            if turn:
                taken.append(1e3 * (time.perf_counter() - start))
    return times


def compared(row: Row, measured: Sequence[Row]) -> Row:
    """Ours against the peer that matters: LS against full attention, local heads against the fastest local peer."""
    if row.name != "longshort":
        return row
    peers = [p for p in measured if p.work == ("full" if row.work == "ls" else row.work) and p.name != row.name]
    if not peers:
        return row
    peer = min(peers, key=lambda p: statistics.median(p.milliseconds))
    return replace(row, speedup=median_ratio(peer.milliseconds, row.milliseconds), against=peer.name)


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of the ratio within the round: what slows the machine in one round slows both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def table(results: dict[str, Any]) -> str:
    """The rows as a Markdown table, ratios first: absolute times belong to one machine."""
    lines = [
        "| shape | direction | work | implementation | median ms | ours is faster by | max error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        ratio = f"{row['speedup']:.2f}x ({row['against']})" if row["speedup"] else ""
        median = statistics.median(row["milliseconds"])
        lines.append(
            f"| {row['shape']} | {row['direction']} | {row['work']} | {row['name']} | {median:.1f} | {ratio} |"
            f" {row['error']:.0e} |"
        )
    return "\n".join(lines)


def save(results: dict[str, Any], path: Path) -> list[Path]:
    """Write the results as JSON, and as a Markdown table beside it."""
    page = path.with_suffix(".md")
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    text = f"# Attention, forward and backward\n\n    {results['command']}\n\n{about}; {results['dtype']}, medians of"
    text += f" {results['rounds']} rounds. `full` is causal attention over all heads, `ls` one global head and the rest"
    text += f" local, `local` those local heads alone. Data: [{path.name}]({path.name}).\n\n{table(results)}\n"
    return [write_json(path, results), write_atomically(page, text)]
