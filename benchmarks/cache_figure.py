"""The picture of what a cache takes, drawn from the results of the decoding benchmark.

Run `python -m benchmarks.cache_figure docs/results/decoding-cpu.json docs/results/cache-memory.png`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from longshort.report.charts import drawing
from longshort.report.figures import frame, picture
from longshort.report.theme import LIGHT

NAMES = {"plain": "every head keeps everything", "ls": "1 global head, 11 with a window of 128"}


def figure(results: dict[str, Any]) -> Any:
    """Two bars for each length, full cache and ours, with their sizes, and how many times smaller ours is."""
    alt = drawing()
    rows = [row for row in results["cache"] if "failed" not in row]
    if not rows:
        raise ValueError("results must have rows of the part cache, got none")
    bars = [
        {
            "length": f"{row['length'] // 1024}k tokens",
            "cache": NAMES[heads],
            "gib": row["bytes"][heads] / 2**30,
            "label": _size(row["bytes"][heads]) + (f"  ({row['smaller']:.1f}x smaller)" if heads == "ls" else ""),
        }
        for row in rows
        for heads in NAMES
    ]
    order = list(NAMES.values())
    largest = max(bar["gib"] for bar in bars)
    axis = alt.Axis(grid=False, tickCount=5, format="g")  # lines would cross the labels
    base = frame(bars).encode(
        y=alt.Y("cache:N", title=None, sort=order, axis=None),
        x=alt.X("gib:Q", title="GiB for one sequence", scale=alt.Scale(domain=[0, 1.15 * largest]), axis=axis),
    )
    colour = alt.Color("cache:N", sort=order, legend=alt.Legend(title=None, orient="top", symbolType="square"))
    marks = base.mark_bar(height={"band": 0.8}).encode(color=colour)
    text = base.mark_text(align="left", dx=6, fontSize=12, color=LIGHT["ink"]).encode(text="label:N")
    return (
        alt.layer(marks, text)
        .properties(width=560, height=64)
        .facet(
            row=alt.Row(
                "length:N",
                sort=[bar["length"] for bar in bars],
                title=None,
                header=alt.Header(labelAngle=0, labelAlign="left", labelFontSize=12, labelColor=LIGHT["ink"]),
            ),
            spacing=14,
        )
    )


def draw(source: Path, path: Path) -> Path:
    """From the benchmark's JSON to a PNG."""
    results = json.loads(source.read_text(encoding="utf-8"))
    return picture(figure(results), path, title="Memory of the key/value cache, gpt2-small, bf16")


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("error: expected two arguments, the JSON of the cache's memory and the picture to write")
    print(f"wrote {draw(Path(sys.argv[1]), Path(sys.argv[2]))}")
