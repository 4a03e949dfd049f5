"""Peak memory of one forward and backward pass, each case in a process of its own, since a process's peak never falls.

Run `python -m benchmarks.memory --out docs/results/memory.json`.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.attention import machine
from longshort.files import write_json
from longshort.heads import HeadPlan
from longshort.losses import linear_cross_entropy
from longshort.ops import attention


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


CASES: dict[str, tuple[str, Callable[[], Callable[[], None]]]] = {
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
"""Name -> what it is, and a function that makes the inputs and returns the step to measure."""


def measure(name: str) -> float:
    """Peak memory of one step above what the inputs take, in MiB."""
    torch.manual_seed(0)
    small = torch.ones(1, 1, 200, 8, requires_grad=True)  # loads what is loaded once
    attention(small, small, small, HeadPlan.long_short(n_heads=1, n_global=0, window=8)).out.sum().backward()
    linear_cross_entropy(torch.ones(4, 8, requires_grad=True), torch.ones(9, 8), torch.zeros(4).long()).backward()
    step = CASES[name][1]()
    before = _peak_mib()
    step()
    return round(_peak_mib() - before, 1)


def measure_all(names: list[str]) -> dict[str, Any]:
    """Every case in a fresh process; ready for JSON."""
    rows = []
    for name in names:
        command = [sys.executable, "-m", "benchmarks.memory", "--only", name]
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append({"case": name, "what": CASES[name][0], "peak_mib": float(answer.stdout)})
    return {"machine": machine(), "dtype": "float32", "direction": "forward+backward", "rows": rows}


def _peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.is_file():  # Linux hands the largest size of a process down to those that it starts, but not this number
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) / 2**10  # type: ignore[index]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--only", choices=list(CASES), help="measure one case in this process")
    arguments = parser.parse_args()
    if arguments.only:
        print(measure(arguments.only))
        return
    result = measure_all(list(CASES))
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        print(f"wrote {write_json(arguments.out, result)}")


if __name__ == "__main__":
    main()
