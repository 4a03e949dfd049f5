"""Time of LaS attention against length: the whole row, windows with decay, and chunks; and what smoothing adds.

Run `python -m benchmarks.las --out docs/results/las-cpu.json`; `--device cuda` on a GPU. A form is only timed
after it has agreed with the reference, outputs and gradients.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention import machine
from longshort.files import write_json
from longshort.heads import HeadPlan
from longshort.nn.chunks import attend_within_chunks
from longshort.ops import Smoothing, attention

HEADS, HEAD_DIM, REACH, WIDTH = 8, 32, 128, 5
LENGTHS = (512, 1024, 2048, 4096)
LAS = HeadPlan.las(HEADS, max_decay=0.001)
WINDOWED = HeadPlan.las(HEADS, max_decay=0.001, window=REACH)
STEEP = HeadPlan(windows=(None,) * HEADS, decays=(1.0,) * HEADS)
SMOOTH, CENTRED = Smoothing(width=WIDTH), Smoothing(width=WIDTH, side="centred")

Form = Callable[..., Tensor]


def whole(plan: HeadPlan, smoothing: Smoothing | None, *, causal: bool = True) -> Form:
    """The op over whole rows."""

    def call(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return attention(q, k, v, plan, smoothing=smoothing, causal=causal, **options).out

    return call


def _in_chunks(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return attend_within_chunks(q, k, v, LAS, REACH, smoothing=SMOOTH, **options).out


FORMS: dict[str, tuple[str, Form]] = {
    "plain": ("plain attention", whole(HeadPlan.full(HEADS), None)),
    "plain, smoothed": ("smoothing only", whole(HeadPlan.full(HEADS), SMOOTH)),
    "las": ("decay and smoothing over the whole row", whole(LAS, SMOOTH)),
    "las, windows": (f"the same in windows of {REACH}", whole(WINDOWED, SMOOTH)),
    "las, chunks": (f"the same in chunks of {REACH}", _in_chunks),
    "las, steep": ("the same with decays of 1 over the whole row", whole(STEEP, SMOOTH)),
    "plain, two-sided": ("plain attention to both sides", whole(HeadPlan.full(HEADS), None, causal=False)),
    "las, two-sided": ("decay and centred smoothing to both sides", whole(LAS, CENTRED, causal=False)),
}
"""Name -> what it is, and the call."""


def inputs(length: int, device: str) -> list[Tensor]:
    """q, k and v (1, H, T, D), with gradients."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, 1, HEADS, length, HEAD_DIM, generator=generator).to(device)
    return [x.requires_grad_() for x in drawn.unbind()]


def agrees(form: Form, device: str) -> bool:
    """Do output and gradients equal those of the reference, at a length that cuts the last chunk short?"""
    leaves = inputs(3 * REACH + 17, device)
    found = []
    for backend in ("auto", "reference"):
        out = form(*leaves, backend=backend)
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    return all(torch.allclose(a, b, atol=1e-3, rtol=1e-3) for a, b in zip(*found, strict=True))


def milliseconds(form: Form, length: int, device: str, repeats: int) -> float:
    """Shortest time of forward and backward, other work only ever adding to it; on a CPU, time of the processor."""
    leaves, times = inputs(length, device), []
    clock = time.perf_counter if device == "cuda" else time.process_time
    for _ in range(repeats + 1):
        _finish(device)
        began = clock()
        torch.autograd.grad(form(*leaves).sum(), leaves)
        _finish(device)
        times.append(1e3 * (clock() - began))
    return round(min(times[1:]), 1)  # the first one warms up


def measure(
    lengths: tuple[int, ...] = LENGTHS,
    device: str = "cpu",
    repeats: int = 5,
    forms: dict[str, tuple[str, Form]] | None = None,
) -> dict[str, Any]:
    """Every form (of LaS unless given) at every length; ready for JSON. One that disagrees with the reference is an
    error.
    """
    rows = []
    for name, (what, form) in (forms or FORMS).items():
        if not agrees(form, device):
            raise RuntimeError(f"{name} disagrees with the reference: no time is taken of it")
        times = {str(length): milliseconds(form, length, device, repeats) for length in lengths}
        rows.append({"form": name, "what": what, "milliseconds": times})
    shape = {"batch": 1, "heads": HEADS, "head_dim": HEAD_DIM, "dtype": "float32"}
    if forms is None:
        shape |= {"reach": REACH, "smoothing": WIDTH}
    where = {"gpu": torch.cuda.get_device_name()} if device == "cuda" else machine()
    return {
        "machine": where,
        "direction": "forward+backward",
        "time": f"shortest of {repeats}" + (", of the processor" if device == "cpu" else ""),
        "shape": shape,
        "rows": rows,
    }


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(forms: dict[str, tuple[str, Form]] | None = None, about: str | None = __doc__) -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    result = measure(device=arguments.device, forms=forms)
    for row in result["rows"]:
        print(f"{row['form']:18}", *(f"{length}: {ms:8.1f} ms" for length, ms in row["milliseconds"].items()))
    if arguments.out is not None:
        print(f"wrote {write_json(arguments.out, result)}")


if __name__ == "__main__":
    main()
