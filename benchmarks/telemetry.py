"""What the logit statistics add to forward and backward of a small model, also on a CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.harness import Entrant, Recorder, median_ratio, take_turns
from benchmarks.pages import Page, Results, markdown
from benchmarks.timing import clocked, warmed
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig

_SMALL: dict[str, Any] = {"vocab_size": 257, "context": 1024, "n_layers": 2, "width": 64, "n_heads": 4}
PLANS = {
    "plain": HeadPlan.full(4),
    "ls": HeadPlan.long_short(n_heads=4, n_global=1, window=16),
}


def run(record: Recorder, *, device: str = "cpu", rounds: int = 15, every: int = 10) -> Results:
    """What the logit statistics cost: forward and backward with and without them, taking turns."""
    results = record.begin(PAGE, device, rounds=rounds, every=every)
    results["rows"] = {
        name: statistics_cost(plan, device=device, rounds=rounds, every=every) for name, plan in PLANS.items()
    }
    return record.end()


def statistics_cost(plan: HeadPlan, *, device: str, rounds: int, every: int) -> dict[str, float]:
    """Median milliseconds of a step, median ratio with to without, and the overhead at one reading in `every` steps."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**_SMALL, plan=plan)).to(device)
    tokens = torch.randint(257, (2, 1025), device=device)

    def step(stats: bool) -> None:
        output = model(tokens[:, :-1], tokens[:, 1:], stats=stats)
        output.loss.backward()
        if stats:
            output.stats.tolist()

    samples = {stats: clocked(warmed(partial(step, stats)), device) for stats in (False, True)}
    entrants = [Entrant(str(stats), required=True, sample=sample) for stats, sample in samples.items()]
    take_turns(entrants, rounds)
    without, with_statistics = entrants
    ratio = median_ratio(with_statistics.milliseconds, without.milliseconds)
    return {
        "milliseconds": without.median,
        "milliseconds_with_statistics": with_statistics.median,
        "ratio": ratio,
        "overhead_at_default": (ratio - 1) / every,
    }


def table(results: Results) -> str:
    """One line per kind of attention."""
    last = f"overhead at one reading in {results['every']} steps"
    rows = [
        (
            name,
            f"{row['milliseconds']:.1f}",
            f"{row['milliseconds_with_statistics']:.1f}",
            f"{row['ratio']:.2f}",
            f"{100 * row['overhead_at_default']:.1f} %",
        )
        for name, row in results["rows"].items()
    ]
    return markdown(("attention", "step, ms", "with statistics, ms", "ratio", last), rows)


PAGE = Page(
    name="telemetry",
    title="What the logit statistics cost",
    command="python -m benchmarks training --statistics --rounds 15 --out benchmarks/results/telemetry.json",
    about=lambda results: "Forward and backward of the demo's model, 2 sequences of 1,024 tokens.",
    tables=table,
)
