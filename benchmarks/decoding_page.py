"""Conclusions of the decoding benchmark: which goals were reached, its pages, and the figure of the cache's memory."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import OURS
from benchmarks.pages import Page, Results, goal, goals_table, markdown
from benchmarks.prefill import saved

_BYTES = {4096: 8.0, 32768: 11.0, 131072: 11.5}
_FROM_LENGTH, _SAVED = 8192, 0.36
_DYNAMIC, _STATIC = "transformers, dynamic cache", "transformers, static cache, compiled"

Rows = Sequence[dict[str, Any]]


def goals(results: Results) -> list[dict[str, Any]]:
    """Each goal, the number that decides it, and whether it was reached; only for parts that were measured."""
    found: list[dict[str, Any]] = []

    def at_least(text: str, value: float | None, target: float) -> None:
        found.append(goal(text, value, ">=", target) | {"target": target})

    sizes = {row["length"]: row["smaller"] for row in results.get("cache", []) if "failed" not in row}
    for length, target in _BYTES.items() if "cache" in results else ():
        at_least(f"cache at {length:,} tokens, times smaller than a full one", sizes.get(length), target)
    speed = [row for row in results.get("speed", []) if "ls_speedup" in row]
    if "speed" in results and results["device"] == "cpu":
        at_least(f"tokens/s, times those of {_DYNAMIC}", _speedup(speed, _DYNAMIC, 1), 2.0)
    elif "speed" in results:
        at_least("tokens/s at batch 32, times those of plain heads", _speedup(speed, OURS, 32), 2.0)
        at_least(f"tokens/s at batch 32, times those of {_STATIC}", _speedup(speed, _STATIC, 32), 2.0)
    batches = [row["ratio"] for row in results.get("batch", []) if "failed" not in row]
    if "batch" in results:
        at_least("largest batch, times that of plain heads", batches[0] if batches else None, 8.0)
    for part, how in (("prefill", "prefill"), ("compiled", "prefill, blocks compiled,")):
        against = prefill_savings(results.get(part, []))
        shares = [min(share.values()) for n, share in against.items() if n >= _FROM_LENGTH]
        name = f"{how} from n {_FROM_LENGTH:,} on, share saved against the faster of FA2 and cuDNN, smallest"
        if part in results:
            at_least(name, min(shares, default=None), _SAVED)
    return found


def _speedup(rows: Rows, name: str, batch: int) -> float | None:
    return next(
        (r["ls_speedup"] for r in rows if (r["variant"], r["heads"], r["batch"]) == (name, "plain", batch)), None
    )


def prefill_savings(rows: Rows) -> dict[int, dict[str, float]]:
    """By length, the share of time that LS saves against each of the peers' kernels."""
    rows = [row for row in rows if "failed" not in row]
    shares = {n: saved([row for row in rows if row["n"] == n]) for n in dict.fromkeys(row["n"] for row in rows)}
    return {n: {peer: share for peer, share in by_peer.items() if peer != "plain"} for n, by_peer in shares.items()}


def tables(results: Results) -> str:
    """A table for each part that was measured, then the goals."""
    makers = {"cache": _cache, "speed": _speed, "batch": _batch, "prefill": _prefill, "compiled": _compiled}
    pieces = []
    for part, make in makers.items():
        if part in results:
            rows = [row for row in results[part] if "failed" not in row]
            pieces += make(rows, results) if rows else []
            pieces += [
                f"{row.get('name') or row['variant']}: {row['failed']}" for row in results[part] if "failed" in row
            ]
    return "\n\n".join([*pieces, "## Goals", goals_table(results["goals"])])


def _cache(rows: Rows, results: Results) -> list[str]:
    lines = []
    for row in rows:
        sizes = (f"{row['bytes'][heads] / 2**20:,.1f}" for heads in ("ls", "plain"))
        lines.append((f"{row['length']:,}", *sizes, f"{row['smaller']:.2f}"))
    text = """One sequence in bf16: 12 layers with 12 heads of dimension 64, 1 of them global, window 128, 32 slots for
rollback. The sizes are measured and equal to the formula."""
    table = markdown(("tokens", "LS cache, MiB", "full cache, MiB", "times smaller"), lines)
    return ["## Bytes of the cache", text, table]


def _speed(rows: Rows, results: Results) -> list[str]:
    lines = [
        (
            f"{row['batch']}, {row['context']:,}",
            row["heads"],
            row["variant"],
            row["mode"],
            f"{statistics.median(row['milliseconds']):.2f}",
            f"{row['tokens_per_second']:,.1f}",
            f"{row['ls_speedup']:.2f}x" if "ls_speedup" in row else "",
            f"{row['error']:.0e}",
        )
        for row in rows
    ]
    text = f"""Greedy decoding by a model of GPT-2's smallest size with the same random weights for all decoders, in
{results["dtype"]}. Medians of rounds in which decoders take turns; ratios are within a round. `error` is that of the
logits against an uncached pass in fp32."""
    header = ("batch, context", "heads", "by", "steps", "ms per token", "tokens/s", "LS is faster by", "error")
    return ["## Decoding", text, markdown(header, lines)]


def _batch(rows: Rows, results: Results) -> list[str]:
    pieces = []
    for row in rows:
        lines = []
        for heads in ("ls", "plain"):
            of = row[heads]
            sizes = (f"{of['bytes_a_row'] / 2**20:,.1f}", f"{of['free'] / 2**30:.1f}")
            lines.append((heads, *sizes, str(of["computed"]), str(of["fits"])))
        table = markdown(("heads", "MiB per sequence", "free, GiB", "batch, computed", "batch, used"), lines)
        pieces += [f"## Largest batch at {row['length']:,} tokens", f"{row['ratio']:.1f} times as large.", table]
    return pieces


def _prefill(rows: Rows, results: Results) -> list[str]:
    text = """`paper-12l-768`, the paper's 12-layer model, with 1 global head and 11 with a window of 100, run eagerly
up to the last hidden state. Plain heads are computed by our kernel, by FlashAttention 2 and by cuDNN."""
    return ["## Prefill", text, _savings(rows)]


def _compiled(rows: Rows, results: Results) -> list[str]:
    return ["## Prefill, blocks compiled", "The same with each block compiled by torch.compile.", _savings(rows)]


def _savings(rows: Rows) -> str:
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    lines = []
    for n, shares in prefill_savings(rows).items():
        of = {row["variant"]: row for row in rows if row["n"] == n}
        times = (f"{statistics.median(of[variant]['milliseconds']):.2f}" for variant in variants)
        lines.append((f"{n:,}", str(of["ls"]["rows"]), *times, f"{min(shares.values()):.1%}"))
    return markdown(("n", "batch", *(f"{variant}, ms" for variant in variants), "saved against the faster"), lines)


def _page(name: str, title: str, options: str) -> Page:
    command = f"python -m benchmarks decoding {options} --out benchmarks/results/{name}.json"
    return Page(name=name, title=title, command=command, about=lambda results: results["note"], tables=tables)


PAGES = {
    "cpu": _page("decoding-cpu", "Decoding on a CPU", "--rounds 9 --minutes 20 --threads 2"),
    "cuda": _page("decoding-gpu", "Decoding on a GPU", "--device cuda --minutes 2.0"),
}

_NAMES = {"plain": "every head keeps everything", "ls": "1 global head, 11 with a window of 128"}


def cache_figure(results: Results) -> Any:
    """Two bars for each length, the full cache and ours, with their sizes and how many times smaller ours is."""
    from longshort.report.charts import drawing
    from longshort.report.theme import LIGHT, method_style

    alt = drawing()
    rows = [row for row in results["cache"] if "failed" not in row]
    if not rows:
        raise ValueError("results must have rows of the part cache, got none")
    bars = [
        {
            "length": f"{row['length'] // 1024}k tokens",
            "cache": _NAMES[heads],
            "gib": row["bytes"][heads] / 2**30,
            "label": _size(row["bytes"][heads]) + (f"  ({row['smaller']:.1f}x smaller)" if heads == "ls" else ""),
        }
        for row in rows
        for heads in _NAMES
    ]
    order = list(_NAMES.values())
    largest = max(bar["gib"] for bar in bars)
    axis = alt.Axis(grid=False, tickCount=5, format="g")  # grid lines would cross the labels
    base = alt.Chart(alt.Data(values=bars)).encode(
        y=alt.Y("cache:N", title=None, sort=order, axis=None),
        x=alt.X("gib:Q", title="GiB for one sequence", scale=alt.Scale(domain=[0, 1.15 * largest]), axis=axis),
    )
    scale = alt.Scale(domain=order, range=[method_style(heads, LIGHT).color for heads in _NAMES])
    legend = alt.Legend(title=None, orient="top", symbolType="square")
    colour = alt.Color("cache:N", sort=order, scale=scale, legend=legend)
    marks = base.mark_bar(height={"band": 0.8}).encode(color=colour)
    text = base.mark_text(align="left", dx=6, fontSize=12, color=LIGHT["ink"]).encode(text="label:N")
    header = alt.Header(labelAngle=0, labelAlign="left", labelFontSize=12, labelColor=LIGHT["ink"])
    row = alt.Row("length:N", sort=[bar["length"] for bar in bars], title=None, header=header)
    title = alt.TitleParams("Memory of the key/value cache, gpt2-small, bf16", anchor="start", offset=14)
    return alt.layer(marks, text).properties(width=560, height=64).facet(row=row, spacing=14).properties(title=title)


def draw_cache(source: Path, path: Path) -> Path:
    """Draw the benchmark's JSON as a PNG."""
    from longshort.report.figures import picture

    return picture(cache_figure(json.loads(source.read_text(encoding="utf-8"))), path)


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
