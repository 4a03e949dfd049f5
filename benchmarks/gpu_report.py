"""What the rows of the GPU benchmark say: ratios to the peers, the goals that were set, and a page of both."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attention import median_ratio
from benchmarks.gpu_peers import CUDNN, FA2, FLEX, OURS, OURS_WITH_STATS, TWO_CALLS
from longshort.files import write_atomically, write_json

DIRECTIONS = ("forward", "backward")
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
_HOLDS = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
_EXPLANATION = """\
Microseconds, forward / backward alone; all take turns within a round, replayed in CUDA graphs (* timed between events,
where a call cannot be captured). `ls` is one global head and the rest local, `local` those local heads alone, `global`
that global head alone, `full` causal attention over all heads. Ratios are ours to theirs, the median of the rounds'
ratios. Every implementation was first checked against the reference."""

Rows = Sequence[dict[str, Any]]


def summarize(rows: Rows) -> dict[str, Any]:
    """Numbers by shape, and the goals; of what was not measured there is nothing.

    `ratios` are ours to theirs (below 1 is faster) with their geometric means; `mhsa_speedup` is how many times faster
    than full attention by cuDNN, forward and backward together; `copy_share` the bandwidth of the local heads' forward
    relative to a copy's; `statistics_cost` what the statistics add to forward, relative to it.
    """
    shapes = _shapes(rows)

    def against(peer: str, direction: str) -> dict[str, Any]:
        one, other = (OURS, "ls", direction), (peer, "ls", direction)
        ratios = _measured(shapes, lambda shape: _ratio(rows, shape, one, other))
        return {"by_shape": ratios, "geometric_mean": statistics.geometric_mean(ratios.values()) if ratios else None}

    with_stats, without = (OURS_WITH_STATS, "ls", "forward"), (OURS, "ls", "forward")
    stats = _measured(shapes, lambda shape: _ratio(rows, shape, with_stats, without))
    summary = {
        "ratios": {peer: {d: against(peer, d) for d in DIRECTIONS} for peer in (FLEX, TWO_CALLS)},
        "mhsa_speedup": _measured(shapes, lambda s: _ratio(rows, s, (CUDNN, "full", "both"), (OURS, "ls", "both"))),
        "copy_share": {r["shape"]: r["copy_share"] for r in rows if r["name"] == OURS and r.get("copy_share")},
        "statistics_cost": {shape: ratio - 1 for shape, ratio in stats.items()},
    }
    return summary | {"goals": _goals(summary)}


def _goals(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, the number that decides it, and whether it was; None where it was not measured."""
    found: list[dict[str, Any]] = []

    def goal(text: str, value: float | None, sign: str, target: float) -> None:
        reached = None if value is None else _HOLDS[sign](value, target)
        found.append({"goal": text, "target": f"{sign} {target:g}", "value": value, "reached": reached})

    for direction in DIRECTIONS:
        flex, calls = (summary["ratios"][peer][direction] for peer in (FLEX, TWO_CALLS))
        goal(f"{direction} / {FLEX}, every shape", max(flex["by_shape"].values(), default=None), "<", 1.0)
        goal(f"{direction} / {FLEX}, geometric mean", flex["geometric_mean"], "<=", 0.80)
        goal(f"{direction} / {FLEX}, geometric mean, hoped for", flex["geometric_mean"], "<=", 0.60)
        goal(f"{direction} / {TWO_CALLS}, geometric mean", calls["geometric_mean"], "<=", 0.50)
    for part, least in (("T8192 D64", 4.0), ("T32768 D128", 15.0)):
        speedups = [x for shape, x in summary["mhsa_speedup"].items() if part in shape]
        goal(f"forward + backward, times faster than {CUDNN} (full), {part}", min(speedups, default=None), ">=", least)
    share, cost = summary["copy_share"].values(), summary["statistics_cost"].values()
    goal("local heads, forward, share of copy bandwidth, every shape", min(share, default=None), ">=", 0.5)
    goal("statistics, added to forward, every shape", max(cost, default=None), "<=", 0.02)
    return found


def table(results: dict[str, Any]) -> str:
    """Three Markdown tables: microseconds by shape, ratios by shape, goals."""
    rows, summary = results["rows"], results["summary"]
    shapes = _shapes(rows)
    times = [["shape", *(f"{name} ({work})" for name, work in COLUMNS)]]
    times += [[shape, *(_cell(rows, shape, *column) for column in COLUMNS)] for shape in shapes]
    by_shape = {
        f"{direction} / {peer}": summary["ratios"][peer][direction]["by_shape"]
        for peer in (FLEX, TWO_CALLS)
        for direction in DIRECTIONS
    }
    by_shape |= {
        f"times faster than {CUDNN} (full)": summary["mhsa_speedup"],
        "share of copy bandwidth": summary["copy_share"],
        "cost of statistics": summary["statistics_cost"],
        "peak memory, MiB (results alone)": {r["shape"]: r["memory"] for r in rows if r.get("memory")},
    }
    ratios = [["shape", *by_shape]]
    ratios += [[shape, *(_number(values.get(shape)) for values in by_shape.values())] for shape in shapes]
    says = {True: "yes", False: "no", None: "not measured"}
    goals = [["goal", "target", "value", "reached"]]
    goals += [[g["goal"], g["target"], _number(g["value"]), says[g["reached"]]] for g in summary["goals"]]
    return "\n\n".join(_markdown(lines) for lines in (times, ratios, goals))


def save(results: dict[str, Any], path: Path) -> list[Path]:
    """Write the results as JSON, and as Markdown tables beside it."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    speed = f"{results['dtype']}, copies within the GPU's memory at {results['copy_bandwidth'] / 1e12:.2f} TB/s"
    head = f"# Attention on a GPU, forward and backward\n\n    {results['command']}\n\n{about}; {speed}."
    text = f"{head} Medians of {results['rounds']} rounds.\n\n{_EXPLANATION} Data: [{path.name}]({path.name})."
    return [write_json(path, results), write_atomically(path.with_suffix(".md"), f"{text}\n\n{table(results)}\n")]


def _shapes(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["shape"] for row in rows))


def _find(rows: Rows, shape: str, name: str, work: str, direction: str) -> dict[str, Any]:
    wanted = (shape, name, work, direction)
    return next((r for r in rows if (r["shape"], r["name"], r["work"], r["direction"]) == wanted), {})


def _times(rows: Rows, shape: str, name: str, work: str, direction: str) -> list[float]:
    """Milliseconds of each round, of `both` directions their sum; none where it was not measured."""
    if direction == "both":
        parts = [_times(rows, shape, name, work, d) for d in DIRECTIONS]
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
    for direction in DIRECTIONS:
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


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    marked = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([marked[0], "|" + "---|" * len(lines[0]), *marked[1:]])
