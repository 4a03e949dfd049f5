"""What the logit statistics cost: a training step with and without them, taking turns.

Run `python -m benchmarks.telemetry --out docs/results/telemetry.json`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention import machine
from longshort.files import write_atomically, write_json
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig

_SMALL: dict[str, Any] = {"vocab_size": 257, "context": 1024, "n_layers": 2, "width": 64, "n_heads": 4}
CASES = {
    "plain": HeadPlan.full(4),
    "ls": HeadPlan.long_short(n_heads=4, n_global=1, window=16),
}


def measure(plan: HeadPlan, *, device: str, rounds: int, every: int) -> dict[str, float]:
    """Median milliseconds of a step, median ratio with to without, and what that is at one reading in `every` steps."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**_SMALL, plan=plan)).to(device)
    tokens = torch.randint(257, (2, 1025), device=device)

    def step(stats: bool) -> float:
        start = time.perf_counter()
        output = model(tokens[:, :-1], tokens[:, 1:], stats=stats)
        output.loss.backward()
        if stats:
            output.stats.tolist()
        if device != "cpu":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    times = [(step(False), step(True)) for _ in range(rounds + 1)][1:]
    ratio = statistics.median(on / off for off, on in times)
    return {
        "milliseconds": statistics.median(off for off, _ in times),
        "milliseconds_with_statistics": statistics.median(on for _, on in times),
        "ratio": ratio,
        "overhead_at_default": (ratio - 1) / every,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--every", type=int, default=10, help="steps between readings (telemetry.logits_every)")
    parser.add_argument("--out", type=Path, help="JSON file for the result; a .md table goes beside it")
    a = parser.parse_args()
    rows = {name: measure(plan, device=a.device, rounds=a.rounds, every=a.every) for name, plan in CASES.items()}
    lines = [
        f"| attention | step, ms | with statistics, ms | ratio | overhead at one reading in {a.every} steps |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['milliseconds']:.1f} | {row['milliseconds_with_statistics']:.1f} | {row['ratio']:.2f} |"
            f" {100 * row['overhead_at_default']:.1f} % |"
        )
    table = "\n".join(lines)
    print(table)
    if a.out is not None:
        about = ", ".join(f"{key} {value}" for key, value in machine().items())
        command = f"python -m benchmarks.telemetry --device {a.device} --rounds {a.rounds} --out {a.out}"
        result = {"machine": machine(), "device": a.device, "rounds": a.rounds, "every": a.every, "rows": rows}
        text = f"# What the logit statistics cost\n\n    {command}\n\n"
        text += f"Forward and backward of the demo's model, 2 rows of 1,024 tokens; {about}.\n\n{table}\n"
        for path in (write_json(a.out, result), write_atomically(a.out.with_suffix(".md"), text)):
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
