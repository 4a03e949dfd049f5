"""Conclusions of the attention benchmark: on a GPU, ratios to the peers and the goals that were set; and its pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.harness import OURS, median_ratio
from benchmarks.pages import Page, Results, goal, goals_table, markdown
from benchmarks.peers import CUDNN, FA2, FLEX, OURS_WITH_STATS, TWO_CALLS

COLUMNS = (
    (OURS, "ls"),
    (OURS_WITH_STATS, "ls"),
    (FLEX, "ls"),
    (TWO_CALLS, "ls"),
    (OURS, "local"),
    (FA2, "local"),
    (CUDNN, "full"),
    (FA2, "full"),
    (CUDNN, "global"),
)
_DIRECTIONS = ("forward", "backward")
_WORK = """`ls` is one global head with the rest local, `local` is those local heads alone, and `full` is causal
attention with all heads global. Every implementation was first checked against the reference."""

Rows = Sequence[dict[str, Any]]


def summarize(rows: Rows) -> dict[str, Any]:
    """Numbers by shape, and the goals; what was not measured is left out.

    `ratios` are our times over theirs (below 1 is faster), with geometric means; `mhsa_speedup` is the speedup over
    full attention by cuDNN, forward and backward together; `copy_share` the bandwidth of the local heads' forward
    relative to a copy; `statistics_cost` what the statistics add to forward, relative to it.
    """
    shapes = _shapes(rows)

    def against(peer: str, direction: str) -> dict[str, Any]:
        one, other = (OURS, "ls", direction), (peer, "ls", direction)
        ratios = _measured(shapes, lambda shape: _ratio(rows, shape, one, other))
        return {"by_shape": ratios, "geometric_mean": statistics.geometric_mean(ratios.values()) if ratios else None}

    with_stats, without = (OURS_WITH_STATS, "ls", "forward"), (OURS, "ls", "forward")
    stats = _measured(shapes, lambda shape: _ratio(rows, shape, with_stats, without))
    summary = {
        "ratios": {peer: {d: against(peer, d) for d in _DIRECTIONS} for peer in (FLEX, TWO_CALLS)},
        "mhsa_speedup": _measured(shapes, lambda s: _ratio(rows, s, (CUDNN, "full", "both"), (OURS, "ls", "both"))),
        "copy_share": {r["shape"]: r["copy_share"] for r in rows if r["name"] == OURS and r.get("copy_share")},
        "statistics_cost": {shape: ratio - 1 for shape, ratio in stats.items()},
    }
    return summary | {"goals": [*_goals(summary)]}


def _goals(summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for direction in _DIRECTIONS:
        flex, calls = (summary["ratios"][peer][direction] for peer in (FLEX, TWO_CALLS))
        yield goal(f"{direction} / {FLEX}, every shape", max(flex["by_shape"].values(), default=None), "<", 1.0)
        yield goal(f"{direction} / {FLEX}, geometric mean", flex["geometric_mean"], "<=", 0.80)
        yield goal(f"{direction} / {FLEX}, geometric mean, hoped for", flex["geometric_mean"], "<=", 0.60)
        yield goal(f"{direction} / {TWO_CALLS}, geometric mean", calls["geometric_mean"], "<=", 0.50)
    for part, least in (("T8192 D64", 4.0), ("T32768 D128", 15.0)):
        speedups = [x for shape, x in summary["mhsa_speedup"].items() if part in shape]
        yield goal(
            f"forward + backward, times faster than {CUDNN} (full), {part}", min(speedups, default=None), ">=", least
        )
    share, cost = summary["copy_share"].values(), summary["statistics_cost"].values()
    yield goal("local heads, forward, share of copy bandwidth, every shape", min(share, default=None), ">=", 0.5)
    yield goal("statistics, added to forward, every shape", max(cost, default=None), "<=", 0.02)


def gpu_tables(results: Results) -> str:
    """Three tables: microseconds by shape, ratios by shape, goals."""
    rows, summary = results["rows"], results["summary"]
    shapes = _shapes(rows)
    times = [[shape, *(_cell(rows, shape, *column) for column in COLUMNS)] for shape in shapes]
    by_shape = {
        f"{direction} / {peer}": summary["ratios"][peer][direction]["by_shape"]
        for peer in (FLEX, TWO_CALLS)
        for direction in _DIRECTIONS
    }
    by_shape |= {
        f"times faster than {CUDNN} (full)": summary["mhsa_speedup"],
        "share of copy bandwidth": summary["copy_share"],
        "cost of statistics": summary["statistics_cost"],
        "peak memory, MiB (results alone)": {r["shape"]: r["memory"] for r in rows if r.get("memory")},
    }
    ratios = [[shape, *(_number(values.get(shape)) for values in by_shape.values())] for shape in shapes]
    named = [f"{name} ({work})" for name, work in COLUMNS]
    tables = [markdown(["shape", *named], times), markdown(["shape", *by_shape], ratios), goals_table(summary["goals"])]
    return "\n\n".join(tables)


def cpu_tables(results: Results) -> str:
    """One table, ratios before errors: absolute times belong to one machine."""
    header = ("shape", "direction", "work", "implementation", "median ms", "ours is faster by", "max error")
    lines = []
    for row in results["rows"]:
        named = (row["shape"], row["direction"], row["work"], row["name"])
        if "failed" in row:
            lines.append((*named, row["failed"], "", ""))
            continue
        ratio = f"{row['speedup']:.2f}x ({row['against']})" if row.get("speedup") else ""
        error = max(row["error"], row.get("gradient_error", 0.0))
        lines.append((*named, f"{statistics.median(row['milliseconds']):.1f}", ratio, f"{error:.0e}"))
    return markdown(header, lines)


def _about_cpu(results: Results) -> str:
    return f"{results['dtype']}, medians of {results['rounds']} rounds. {_WORK}"


def _about_gpu(results: Results) -> str:
    speed = f"copies within the GPU's memory run at {results['copy_bandwidth'] / 1e12:.2f} TB/s"
    return f"""{results["dtype"]}, {speed}. Medians of {results["rounds"]} rounds.

Times are in microseconds, forward / backward alone. All implementations take turns within a round, replayed in CUDA
graphs (* timed between events, where a call cannot be captured). Ratios are our time over theirs, the median of the
ratios within a round. `global` is the global head alone; {_WORK}"""


CPU_PAGE, ARM_PAGE = (
    Page(
        name=name,
        title=f"Attention on {machine}, forward and backward",
        command=f"python -m benchmarks attention --rounds 5 --threads 2 --out benchmarks/results/{name}.json",
        about=_about_cpu,
        tables=cpu_tables,
    )
    for name, machine in (("attention-cpu", "an x86 CPU"), ("attention-arm", "an ARM CPU"))
)
GPU_PAGE = Page(
    name="attention-gpu",
    title="Attention on a GPU, forward and backward",
    command="python -m benchmarks attention --device cuda --rounds 3 --out benchmarks/results/attention-gpu.json",
    about=_about_gpu,
    tables=gpu_tables,
)


def _shapes(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["shape"] for row in rows))


def _find(rows: Rows, shape: str, name: str, work: str, direction: str) -> dict[str, Any]:
    wanted = (shape, name, work, direction)
    return next((r for r in rows if (r["shape"], r["name"], r["work"], r["direction"]) == wanted), {})


def _times(rows: Rows, shape: str, name: str, work: str, direction: str) -> list[float]:
    """Milliseconds of each round, the sum for `both` directions; empty if not measured."""
    if direction == "both":
        parts = [_times(rows, shape, name, work, d) for d in _DIRECTIONS]
        return [sum(pair) for pair in zip(*parts, strict=True)] if all(parts) else []
    times: list[float] = _find(rows, shape, name, work, direction).get("milliseconds", [])
    return times


def _ratio(rows: Rows, shape: str, one: tuple[str, str, str], other: tuple[str, str, str]) -> float | None:
    times, others = _times(rows, shape, *one), _times(rows, shape, *other)
    return median_ratio(times, others) if times and others else None


def _measured(shapes: Iterable[str], value: Callable[[str], float | None]) -> dict[str, float]:
    values = {shape: value(shape) for shape in shapes}
    return {shape: x for shape, x in values.items() if x is not None}


def _cell(rows: Rows, shape: str, name: str, work: str) -> str:
    parts = []
    for direction in _DIRECTIONS:
        row = _find(rows, shape, name, work, direction)
        if "milliseconds" in row:
            mark = "*" if direction == "forward" and row["timing"] == "events" else ""
            parts.append(f"{1e3 * statistics.median(row['milliseconds']):.0f}{mark}")
        else:
            parts.append("failed" if row else "")
    return " / ".join(parts)


def _number(value: float | dict[str, float] | None) -> str:
    if isinstance(value, dict):
        return f"{value['peak']:.0f} ({value['results']:.0f})"
    return "" if value is None else f"{value:.3g}"
