"""Peak memory of one forward and backward pass, each case in a separate process, since a process's peak never falls;
and the memory of a cache: its bytes against those of a full cache, and the largest batch that fits a device."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.harness import Recorder, WrongResult
from benchmarks.pages import ROOT, Page, Results, markdown
from benchmarks.timing import free
from longshort.heads import HeadPlan
from longshort.losses import linear_cross_entropy
from longshort.model import GPT, GPTConfig
from longshort.nn import LSCache
from longshort.ops import attention

LENGTHS = (4096, 32768, 131072)
_MARGIN = 1 << 31
"""Bytes of the GPU's memory left free for a step's activations."""
_RETREAT = 0.98
"""The batch is lowered by this factor if the computed one does not fit after all."""


def _loss(tokens: int, vocab: int, width: int, *, chunked: bool) -> Callable[[], None]:
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.nn.Parameter(0.02 * torch.randn(vocab, width))
    targets = torch.randint(vocab, (tokens,))

    def step() -> None:
        if chunked:
            linear_cross_entropy(hidden, weight, targets).backward()
        else:
            F.cross_entropy(hidden @ weight.T, targets).backward()

    return step


def _attention(plan: HeadPlan, length: int, head_dim: int) -> Callable[[], None]:
    q, k, v = (torch.randn(1, plan.n_heads, length, head_dim, requires_grad=True) for _ in range(3))
    upstream = torch.randn(1, plan.n_heads, length, head_dim)
    return lambda: attention(q, k, v, plan).out.backward(upstream)


CASES: dict[str, tuple[str, Callable[[], Callable[[], object]]]] = {
    "loss-full": (
        "cross-entropy of full logits, 16,384 tokens, vocabulary 50,257, width 256",
        lambda: _loss(16_384, 50_257, 256, chunked=False),
    ),
    "loss-chunked": ("the same by linear_cross_entropy", lambda: _loss(16_384, 50_257, 256, chunked=True)),
    "attention-local": (
        "all-local attention, B1 H8 T65536 D64 w128 (output and three gradients alone are 512 MiB)",
        lambda: _attention(HeadPlan.long_short(n_heads=8, n_global=0, window=128), 65_536, 64),
    ),
}
"""Name -> a description, and a function that makes the inputs and returns the step to measure."""


def run(record: Recorder, cases: Sequence[str] = tuple(CASES)) -> Results:
    """Every case in a fresh process."""
    record.begin(PAGE, "cpu", direction="forward+backward")
    for name in cases:
        record.piece("rows", name, partial(_measure_apart, name))
    return record.end()


def _measure_apart(name: str) -> list[dict[str, Any]]:
    code = f"from benchmarks import memory; print(memory.peak(*memory.CASES[{name!r}][1:]))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        raise ValueError(f"the process that measures {name} ended with {answer.returncode}: {answer.stderr[-300:]}")
    return [{"case": name, "what": CASES[name][0], "peak_mib": float(answer.stdout)}]


def peak(make: Callable[[], Callable[[], object]]) -> float:
    """Peak memory of one step above what the inputs take, in MiB."""
    torch.manual_seed(0)
    small = torch.ones(1, 1, 200, 8, requires_grad=True)  # triggers one-time loading
    attention(small, small, small, HeadPlan.long_short(n_heads=1, n_global=0, window=8)).out.sum().backward()
    linear_cross_entropy(torch.ones(4, 8, requires_grad=True), torch.ones(9, 8), torch.zeros(4).long()).backward()
    step = make()
    before = _peak_mib()
    step()
    return round(_peak_mib() - before, 1)


def _peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux a child process inherits the peak in getrusage, but not this number
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 2**10  # type: ignore[index]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere


PAGE = Page(
    name="memory",
    title="Peak memory of forward and backward",
    command="python -m benchmarks memory --out benchmarks/results/memory.json",
    about=lambda results: f"Memory beyond the inputs, {results['dtype']}, each case in a separate process.",
    tables=lambda results: markdown(
        ("case", "what", "peak, MiB"),
        [(row["case"], row["what"], f"{row['peak_mib']:,.1f}") for row in results["rows"]],
    ),
)


def cache_bytes(plan: HeadPlan, *, length: int, rollback: int, n_layers: int, head_dim: int, itemsize: int) -> int:
    """Bytes of a cache allocated for `length` positions: a key and a value for each slot that a head keeps.

    >>> plan = HeadPlan.long_short(n_heads=12, n_global=1, window=128)
    >>> full = cache_bytes(HeadPlan.full(12), length=32768, rollback=32, n_layers=12, head_dim=64, itemsize=2)
    >>> round(full / cache_bytes(plan, length=32768, rollback=32, n_layers=12, head_dim=64, itemsize=2), 1)
    11.4
    """
    slots = sum(length if window is None else min(length, window + rollback) for window in plan.windows)
    return 2 * n_layers * slots * head_dim * itemsize


def cache_rows(lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, Any]]:
    """Measured bytes of bf16 caches with 1 global head of 12, against caches in which every head keeps everything."""
    window, rollback, rows = 128, 32, []
    for length in lengths:
        measured = {}
        for heads, plan in (("ls", HeadPlan.long_short(12, 1, window)), ("plain", HeadPlan.full(12))):
            options: dict[str, Any] = {"head_dim": 64, "max_length": length, "rollback": rollback}
            measured[heads] = LSCache([plan] * 12, dtype=torch.bfloat16, **options).nbytes
            wanted = cache_bytes(plan, length=length, rollback=rollback, n_layers=12, head_dim=64, itemsize=2)
            if measured[heads] != wanted:
                raise WrongResult(f"a cache of {length} tokens ({heads}) has {measured[heads]} bytes, not {wanted}")
        smaller = measured["plain"] / measured["ls"]
        rows.append({"length": length, "window": window, "rollback": rollback, "bytes": measured, "smaller": smaller})
    return rows


def largest_batches(
    *,
    length: int = 32768,
    window: int = 128,
    device: str = "cuda",
    sizes: dict[str, Any] | None = None,
    memory: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """The largest batch of gpt2-small with LS heads and with plain heads, computed and then allocated and used.

    `memory` is the number of bytes that the caches may take; if None, what is free on the GPU, less a margin.
    """
    batches: dict[str, Any] = {}
    for heads in ("plain", "ls"):
        changes = {"context": length, "window": window} | (sizes or {})
        config = GPTConfig.preset("gpt2-small", **changes)
        if heads == "plain":
            config = replace(config, n_global=config.n_heads, window=None)
        torch.manual_seed(0)
        model = GPT(config).to(device, dtype).eval()
        one_sequence = model.new_cache(1, max_length=length, rollback=0).nbytes
        free(device)
        available = memory if memory is not None else torch.cuda.mem_get_info()[0] - _MARGIN
        computed = available // one_sequence
        batches[heads] = {"bytes_a_row": one_sequence, "free": available, "computed": computed}
        batches[heads]["fits"] = _largest_that_fits(model, computed, length, device)
        del model
        free(device)
    return {"length": length, "window": window, **batches, "ratio": batches["ls"]["fits"] / batches["plain"]["fits"]}


@torch.no_grad()
def _largest_that_fits(model: GPT, batch: int, length: int, device: str) -> int:
    """The largest batch, at most `batch`, for which a cache can be allocated and a token run through the model."""
    while batch:
        try:
            cache = model.new_cache(batch, max_length=length, rollback=0)
            model(torch.zeros(batch, 1, dtype=torch.long, device=device), cache=cache)
            return batch
        except torch.OutOfMemoryError:
            batch = min(batch - 1, int(_RETREAT * batch))
        finally:
            cache = None  # type: ignore[assignment]
            free(device)
    raise WrongResult("not even one sequence fits")
