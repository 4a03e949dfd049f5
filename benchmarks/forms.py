"""Forward and backward of attention by length, with LaS and with ALiBi, beside the same heads without them.

LaS: over the whole sequence, in windows with decay and in chunks, and what smoothing adds. Slopes: on global heads. A
form is timed only after its outputs and gradients have agreed with the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Entrant, Recorder, WrongResult, take_turns
from benchmarks.pages import Page, Results, markdown
from benchmarks.timing import clocked, warmed
from longshort.heads import HeadPlan
from longshort.nn.chunks import attend_within_chunks
from longshort.ops import Smoothing, attention

HEADS, HEAD_DIM, REACH, WIDTH = 8, 32, 128, 5
LENGTHS = (512, 1024, 2048, 4096)
REPEATS = 5

_PLAIN = HeadPlan.full(HEADS)
_LAS = HeadPlan.las(HEADS, max_decay=0.001)
_WINDOWED = HeadPlan.las(HEADS, max_decay=0.001, window=REACH)
_STEEP = HeadPlan(windows=(None,) * HEADS, decays=(1.0,) * HEADS)
_SLOPED = _PLAIN.with_alibi()
_SMOOTH, _CENTRED = Smoothing(width=WIDTH), Smoothing(width=WIDTH, side="centred")


@dataclass(frozen=True)
class Form:
    """One way to attend."""

    name: str
    what: str
    call: Callable[..., Tensor]
    """Called with q, k, v and the backend."""


def _whole(plan: HeadPlan, smoothing: Smoothing | None = None, *, causal: bool = True) -> Callable[..., Tensor]:
    """The op over whole sequences."""

    def call(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
        return attention(q, k, v, plan, smoothing=smoothing, causal=causal, backend=backend).out

    return call


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
    return attend_within_chunks(q, k, v, _LAS, REACH, smoothing=_SMOOTH, backend=backend).out


FORMS = {
    "las": (
        Form("plain", "plain attention", _whole(_PLAIN)),
        Form("plain, smoothed", "smoothing only", _whole(_PLAIN, _SMOOTH)),
        Form("las", "decay and smoothing over the whole row", _whole(_LAS, _SMOOTH)),
        Form("las, windows", f"the same in windows of {REACH}", _whole(_WINDOWED, _SMOOTH)),
        Form("las, chunks", f"the same in chunks of {REACH}", _in_chunks),
        Form("las, steep", "the same with decays of 1 over the whole row", _whole(_STEEP, _SMOOTH)),
        Form("plain, two-sided", "plain attention to both sides", _whole(_PLAIN, causal=False)),
        Form("las, two-sided", "decay and centred smoothing to both sides", _whole(_LAS, _CENTRED, causal=False)),
    ),
    "slopes": (
        Form("plain", "plain attention", _whole(_PLAIN)),
        Form("slopes", "with ALiBi's slopes", _whole(_SLOPED)),
        Form("slopes and decay", "with slopes and LaS's decay", _whole(replace(_LAS, slopes=_SLOPED.slopes))),
        Form("plain, two-sided", "plain attention to both sides", _whole(_PLAIN, causal=False)),
        Form("slopes, two-sided", "slopes to both sides", _whole(_SLOPED, causal=False)),
    ),
}


def run(
    record: Recorder,
    kind: str,
    *,
    device: str = "cpu",
    lengths: Sequence[int] = LENGTHS,
    repeats: int = REPEATS,
    forms: Sequence[Form] | None = None,
) -> Results:
    """Every form of `kind`, "las" or "slopes", at every length."""
    shape: dict[str, Any] = {"batch": 1, "heads": HEADS, "head_dim": HEAD_DIM, "dtype": "float32"}
    if kind == "las":
        shape |= {"reach": REACH, "smoothing": WIDTH}
    taken = f"shortest of {repeats}" + (", of the processor" if device == "cpu" else "")
    record.begin(PAGES[kind], device, dtype="float32", direction="forward+backward", time=taken, shape=shape)
    for form in FORMS[kind] if forms is None else forms:
        record.piece("rows", form.name, partial(_measure, form, lengths, device, repeats))
    return record.end()


def _measure(form: Form, lengths: Sequence[int], device: str, repeats: int) -> list[dict[str, Any]]:
    check(form, device)
    times = {str(length): _milliseconds(form, length, device, repeats) for length in lengths}
    return [{"form": form.name, "what": form.what, "milliseconds": times}]


def check(form: Form, device: str) -> None:
    """Raise `WrongResult` unless output and gradients are the reference's, at a length that cuts the last chunk."""
    leaves = _inputs(3 * REACH + 17, device)
    found = []
    for backend in ("auto", "reference"):
        out = form.call(*leaves, backend=backend)
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    if not all(torch.allclose(a, b, atol=1e-3, rtol=1e-3) for a, b in zip(*found, strict=True)):
        raise WrongResult(f"{form.name} disagrees with the reference and is not timed")


def _milliseconds(form: Form, length: int, device: str, repeats: int) -> float:
    """Shortest time of forward and backward, since other work can only add to it; on a CPU, processor time."""
    leaves = _inputs(length, device)

    def step() -> object:
        return torch.autograd.grad(form.call(*leaves, backend="auto").sum(), leaves)

    clock = time.perf_counter if device == "cuda" else time.process_time
    entrant = Entrant(form.name, required=True, sample=clocked(warmed(step), device, clock=clock))
    take_turns([entrant], repeats)
    return round(min(entrant.milliseconds), 1)


def _inputs(length: int, device: str) -> list[Tensor]:
    """q, k and v (1, H, T, D), with gradients."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 1, HEADS, length, HEAD_DIM, generator=generator).to(device)
    return [x.requires_grad_() for x in drawn.unbind()]


def _about(results: Results) -> str:
    shape = ", ".join(f"{name} {value}" for name, value in results["shape"].items())
    return f"Milliseconds of forward and backward, {results['time']}; {shape}."


def _table(results: Results) -> str:
    lengths = list(results["rows"][0]["milliseconds"])
    header = ("form", "what", *(f"T = {int(length):,}" for length in lengths))
    rows = [
        (f"`{row['form']}`", row["what"], *(f"{row['milliseconds'][length]:,.1f}" for length in lengths))
        for row in results["rows"]
    ]
    return markdown(header, rows)


def _page(kind: str, title: str) -> Page:
    command = f"OMP_NUM_THREADS=1 python -m benchmarks attention --{kind} --out benchmarks/results/{kind}-cpu.json"
    return Page(name=f"{kind}-cpu", title=title, command=command, about=_about, tables=_table)


PAGES = {
    "las": _page("las", "LaS attention by length"),
    "slopes": _page("slopes", "ALiBi's slopes by length"),
}
