"""What variants cost, as `reach-costs` has measured it, in the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.engine.measures import Row, read_json

NAME = "reach-costs"


def published(experiment: str, results: Path) -> list[Row]:
    """The costs of this experiment's variants in the folder of published data; none where they were not measured."""
    path = results / f"{NAME}.json"
    return [row for row in read_json(path)["rows"] if row["experiment"] == experiment] if path.is_file() else []


def header(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns of `cells`: what was measured of at least one of these variants."""
    one = rows[0]
    return (
        *(("GPU time per step, % of full's",) if _measured(rows, "gpu_time") else ()),
        *(f"training at {context:,}, 1,000 tokens/s" for context in _contexts(rows)),
        *((f"decoding at {one['length']:,}, 1,000 tokens/s",) if _measured(rows, "decoding") else ()),
        f"cache at {one['length']:,}, MiB",
    )


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """The costs of one variant among these; a cell is empty where nothing was measured yet."""
    time = f"{100 * row['gpu_time']:.0f}" if "gpu_time" in row else ""
    return (
        *((time,) if _measured(rows, "gpu_time") else ()),
        *(_speed(row["training"], str(context)) for context in _contexts(rows)),
        *((_speed(row, "decoding"),) if _measured(rows, "decoding") else ()),
        f"{row['cache_bytes'] / 2**20:.1f}",
    )


def _measured(rows: Sequence[Row], key: str) -> bool:
    return any(key in row for row in rows)


def _contexts(rows: Sequence[Row]) -> list[int]:
    """The contexts at which training was measured, but for that of the runs, which GPU time is for."""
    return sorted({int(context) for row in rows for context in row["training"]} - {row["context"] for row in rows})


def _speed(speeds: Row, key: str) -> str:
    """
    >>> _speed({"a": 21_333.9}, "a"), _speed({"a": 3_276_800.0}, "a"), _speed({"a": None}, "a"), _speed({}, "a")
    ('21.3', '3,277', 'failed', '')
    """
    if key not in speeds:
        return ""
    found = speeds[key]
    return "failed" if found is None else f"{found / 1e3:,.0f}" if found >= 1e6 else f"{found / 1e3:.3g}"


def about(rows: Sequence[Row]) -> str:
    """What the columns mean, in sentences."""
    one = rows[0]
    decoding = (
        f"decoding is {one['batch']} sequences together that have read {one['length']:,} tokens each; "
        if _measured(rows, "decoding")
        else ""
    )
    text = (
        f"Training is a whole step of {one['tokens']:,} tokens; {decoding}the cache is that of one sequence, in bf16. "
        "Losses are after equal steps. "
    )
    if _measured(rows, "gpu_time"):
        contexts = ", ".join(dict.fromkeys(f"{row['context']:,}" for row in rows))
        text += (
            f"GPU time per step is at the context of the runs ({contexts}). The loss after equal GPU time cannot be "
            "read from these runs: with a cosine schedule a loss before the last step is too high, and no plan ran for "
            "longer. GPU time per step says instead what the same number of steps takes: a plan that takes less, and "
            "has the lower loss, is ahead at equal GPU time too if more steps do not raise its loss. "
        )
    return f"{text}How it was measured is on the page of [{NAME}]({NAME}.md)."
