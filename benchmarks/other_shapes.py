"""Attention on a GPU at shapes that no tile was tuned for, against FlexAttention; and what the plan of the heads costs.

A plan is compared with the uniform plan that has as many visible pairs, in which every head of every layer has the same
window: the ratio of the times per pair is that of the kernels' efficiency.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.attention import DIRECTIONS, draw_several, measure, timer
from benchmarks.harness import OURS, UNFINISHED, Entrant, Recorder, WrongResult, median_ratio, take_turns
from benchmarks.pages import Page, Results, goals_table, markdown
from benchmarks.peers import FLEX, on_gpu
from benchmarks.shapes import OTHER_SHAPES, Shape
from longshort.heads import HeadPlan
from longshort.ops import attention

_ERROR = 2e-2
_SHAPE_GOAL, _PLAN_GOAL = 0.80, 1.3


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The plans of some layers, which a model repeats."""

    name: str
    plans: tuple[HeadPlan, ...]

    def pairs(self, length: int) -> int:
        """Pairs of a query and a visible key, over all heads and layers."""
        return sum(_pairs(window, length) for plan in self.plans for window in plan.windows)

    def uniform(self, length: int) -> HeadPlan:
        """The plan with one window for all heads that has as many pairs per layer, or a few more."""
        heads = self.plans[0].n_heads
        each = self.pairs(length) / (heads * len(self.plans))
        window = next(window for window in range(1, length + 1) if _pairs(window, length) >= each)
        return HeadPlan(windows=(window,) * heads)


def _pairs(window: int | None, length: int) -> int:
    """Visible pairs of a head.

    >>> _pairs(2, 4), _pairs(None, 4)
    (7, 10)
    """
    window = length if window is None else min(window, length)
    return window * length - window * (window - 1) // 2


PLANS = (
    Layers(name="1 global head", plans=(HeadPlan.long_short(12, 1, 128),)),
    Layers(name="4 global heads", plans=(HeadPlan.long_short(12, 4, 128),)),
    Layers(
        name="ladder",
        plans=(HeadPlan(windows=(None, 4096, 2048, 1024, 512, 512, 256, 256, 128, 128, 64, 64)),),
    ),
    Layers(name="1 global layer, 5 local", plans=(HeadPlan.full(12), *(HeadPlan(windows=(128,) * 12),) * 5)),
)
PLAN_SHAPE = Shape(batch=2, heads=12, length=8192, head_dim=64, window=128)


def run(
    record: Recorder,
    *,
    device: str = "cuda",
    shapes: Sequence[Shape] = OTHER_SHAPES,
    plans: Sequence[Layers] = PLANS,
    plan_shape: Shape = PLAN_SHAPE,
    rounds: int = 3,
    backend: str = "triton",
) -> Results:
    """Measure every shape, then the plans."""
    contenders = [i for i in on_gpu(device, backend=backend) if i.work == "ls" and i.name in (OURS, FLEX)]

    record.begin(PAGE, device, conclude=lambda results: {"goals": goals(results)}, merge=True, rounds=rounds)
    timing: dict[str, Any] = {"device": device, "rounds": rounds}
    for shape in shapes:
        record.piece("rows", str(shape), partial(measure, shape, contenders, **timing), lenient=True)
        torch.compiler.reset()
    for layers in plans:
        record.piece("plans", layers.name, partial(measure_plan, layers, plan_shape, backend=backend, **timing))
    return record.end()


def measure_plan(layers: Layers, shape: Shape, *, device: str, rounds: int, backend: str) -> list[dict[str, Any]]:
    """A row for each direction: the layers' time per visible pair as a multiple of the uniform plan's."""
    uniform = layers.uniform(shape.length)
    distinct = list(dict.fromkeys((*layers.plans, uniform)))
    drawn, rows = draw_several(shape, "full", device), []
    entrants = {plan: Entrant(OURS, required=True) for plan in distinct}

    def set_clock(plan: HeadPlan, entrant: Entrant, direction: str) -> None:
        attend = partial(_attend, plan=plan, backend=backend)
        _check(plan, drawn[0][:3], backend)
        entrant.sample, entrant.facts["timing"] = timer(attend, drawn, direction, device)

    for direction in DIRECTIONS[device]:
        for plan, entrant in entrants.items():
            entrant.attempt(partial(set_clock, plan, entrant, direction))
        take_turns(list(entrants.values()), rounds)
        rounds_of = zip(*(entrants[plan].milliseconds for plan in layers.plans), strict=True)
        times = [sum(each) / len(layers.plans) for each in rounds_of]
        mine = layers.pairs(shape.length) / len(layers.plans)
        theirs = Layers(name="uniform", plans=(uniform,)).pairs(shape.length)
        row: dict[str, Any] = {"name": layers.name, "shape": str(shape), "direction": direction, "pairs": mine}
        row |= {"uniform_window": uniform.windows[0], "milliseconds": times}
        row["uniform_milliseconds"] = entrants[uniform].milliseconds
        ratio = median_ratio(times, entrants[uniform].milliseconds) * theirs / mine
        rows.append(row | {"ratio": ratio, "timing": entrants[uniform].facts["timing"]})
    return rows


def _attend(q: Any, k: Any, v: Any, *, plan: HeadPlan, backend: str) -> Any:
    return attention(q, k, v, plan, backend=backend).out


def _check(plan: HeadPlan, inputs: tuple[Any, Any, Any], backend: str) -> None:
    """The last rows against the reference."""
    q, k, v = (x.detach() for x in inputs)
    few = min(64, q.shape[2])
    wanted = attention(q[:, :, -few:].float(), k.float(), v.float(), plan, backend="reference").out
    error = (_attend(q, k, v, plan=plan, backend=backend)[:, :, -few:].float() - wanted).abs().max().item()
    if not error <= _ERROR:
        raise WrongResult(f"{OURS} is wrong with windows {plan.windows}: error {error:.1e} > {_ERROR:.0e}")


def ratios(results: Results) -> dict[tuple[str, str], float]:
    """Our time over FlexAttention's, by shape and direction."""
    times = {(r["shape"], r["direction"], r["name"]): r.get("milliseconds") for r in results.get("rows", [])}
    found = {}
    for (shape, direction, name), ours in times.items():
        theirs = times.get((shape, direction, FLEX))
        if name == OURS and ours and theirs:
            found[shape, direction] = median_ratio(ours, theirs)
    return found


def goals(results: Results) -> list[dict[str, Any]]:
    """Each goal, the number that decides it, and whether it was reached."""
    shapes, plans = ratios(results).values(), [row["ratio"] for row in results.get("plans", [])]
    found = (
        (f"other shapes, time / {FLEX}, worst", max(shapes, default=None), _SHAPE_GOAL),
        ("plans, time per visible pair / uniform plan, worst", max(plans, default=None), _PLAN_GOAL),
    )
    partial = UNFINISHED in results  # then a goal may be missed already, but is not reached yet
    return [
        {
            "goal": f"{text}, of those measured so far" if partial and value is not None else text,
            "target": f"<= {most:g}",
            "value": value,
            "reached": None if value is None or (partial and value <= most) else value <= most,
        }
        for text, value, most in found
    ]


def tables(results: Results) -> str:
    """Shapes, plans, goals."""
    found, pieces = ratios(results), []
    if "rows" in results:
        lines = []
        for row in results["rows"]:
            if row.get("name") != OURS or "failed" in row:
                continue
            ratio = found.get((row["shape"], row["direction"]))
            us = f"{1e3 * statistics.median(row['milliseconds']):.0f}"
            compared = "" if ratio is None else f"{ratio:.2f}"
            lines.append((row["shape"], row["direction"], us, compared, row["timing"]))
        pieces.append(markdown(("shape", "direction", "us", f"/ {FLEX}", "timed in"), lines))
        failed = [row for row in results["rows"] if "failed" in row]
        pieces += [f"{row.get('shape', '')} {row['name']}: {row['failed']}" for row in failed]
    if "plans" in results:
        plan_lines = [
            (
                row["name"],
                row["shape"],
                row["direction"],
                f"{1e3 * statistics.median(row['milliseconds']):.0f}",
                f"{1e3 * statistics.median(row['uniform_milliseconds']):.0f}",
                str(row["uniform_window"]),
                f"{row['ratio']:.2f}",
            )
            for row in results["plans"]
        ]
        header = ("plan", "shape", "direction", "us per layer", "uniform", "its window", "time per pair")
        pieces.append(markdown(header, plan_lines))
    return "\n\n".join([*pieces, goals_table(results["goals"])])


PAGE = Page(
    name="other-shapes",
    title="Attention at other shapes and with other plans",
    command="python -m benchmarks attention --device cuda --others --out benchmarks/results/other-shapes.json",
    about=lambda results: (
        f"""{results["dtype"]}, medians of {results["rounds"]} rounds. Shapes that no tile was tuned
for: H32/8 are 32 query heads with 8 key/value heads, g4 are 4 global heads. Plans are compared with the uniform plan of
as many visible pairs: time per pair."""
    ),
    tables=tables,
)
