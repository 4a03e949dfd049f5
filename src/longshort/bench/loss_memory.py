"""Peak memory of the chunked loss against cross-entropy of full logits, each in a process of its own.

Run `python -m longshort.bench.loss_memory --out docs/results/loss-memory.json`.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

LOSSES = ("full", "chunked")


def measure(loss: str, tokens: int, vocab: int, width: int) -> dict[str, float]:
    """Forward and backward once: peak memory above what the inputs take, in MiB, and the loss."""
    import torch
    from torch.nn import functional as F

    from longshort.losses import linear_cross_entropy

    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.nn.Parameter(0.02 * torch.randn(vocab, width))
    targets = torch.randint(vocab, (tokens,))
    linear_cross_entropy(hidden[:8], weight[:64], targets[:8] % 64).backward()  # loads what is loaded once
    hidden.grad = weight.grad = None
    before = _peak_mib()
    if loss == "full":
        value = F.cross_entropy(hidden @ weight.T, targets)
    else:
        value = linear_cross_entropy(hidden, weight, targets)
    value.backward()
    return {"peak_mib": round(_peak_mib() - before, 1), "loss": round(value.item(), 5)}


def compare(tokens: int, vocab: int, width: int) -> dict[str, Any]:
    """Each loss in a fresh process, since a process's peak never falls."""
    import torch

    results = {}
    for loss in LOSSES:
        command = [sys.executable, "-m", __spec__.name, "--only", loss]
        sizes = ["--tokens", str(tokens), "--vocab", str(vocab), "--width", str(width)]
        answer = subprocess.run(command + sizes, check=True, capture_output=True, text=True)
        results[loss] = json.loads(answer.stdout)
    return {
        "tokens": tokens,
        "vocab": vocab,
        "width": width,
        "dtype": "float32",
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        **results,
    }


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--only", choices=LOSSES, help="measure one loss in this process")
    arguments = parser.parse_args()
    sizes = (arguments.tokens, arguments.vocab, arguments.width)
    result = measure(arguments.only, *sizes) if arguments.only else compare(*sizes)
    print(json.dumps(result, indent=None if arguments.only else 2))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
