"""The decoding benchmark's conclusions: which goals were reached, and its page."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.prefill import saved
from longshort.files import write_atomically, write_json

_BYTES = {4096: 8.0, 32768: 11.0, 131072: 11.5}
_FROM_LENGTH, _SAVED = 8192, 0.36
_DYNAMIC, _STATIC = "transformers, dynamic cache", "transformers, static cache, compiled"


def goals(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, the number that decides it, and whether it was; only of parts that were measured."""
    found: list[dict[str, Any]] = []

    def goal(text: str, value: float | None, target: float) -> None:
        reached = None if value is None else operator.ge(value, target)
        found.append({"goal": text, "target": target, "value": value, "reached": reached})

    sizes = {row["length"]: row["smaller"] for row in results.get("cache", []) if "failed" not in row}
    for length, target in _BYTES.items() if "cache" in results else ():
        goal(f"cache at {length:,} tokens, times smaller than a full one", sizes.get(length), target)
    speed = [row for row in results.get("speed", []) if "ls_speedup" in row]
    if "speed" in results and results["device"] == "cpu":
        goal(f"tokens/s, times those of {_DYNAMIC}", _speedup(speed, _DYNAMIC, 1), 2.0)
    elif "speed" in results:
        goal("tokens/s at batch 32, times those of plain heads", _speedup(speed, "longshort", 32), 2.0)
        goal(f"tokens/s at batch 32, times those of {_STATIC}", _speedup(speed, _STATIC, 32), 2.0)
    batches = [row["ratio"] for row in results.get("batch", []) if "failed" not in row]
    if "batch" in results:
        goal("largest batch, times that of plain heads", batches[0] if batches else None, 8.0)
    for part, how in (("prefill", "prefill"), ("compiled", "prefill, blocks compiled,")):
        against = prefill_savings(results.get(part, []))
        shares = [min(share.values()) for n, share in against.items() if n >= _FROM_LENGTH]
        name = f"{how} from n {_FROM_LENGTH:,} on, share saved against the faster of FA2 and cuDNN, smallest"
        if part in results:
            goal(name, min(shares, default=None), _SAVED)
    return found


def _speedup(rows: Sequence[dict[str, Any]], arm: str, batch: int) -> float | None:
    return next((r["ls_speedup"] for r in rows if (r["arm"], r["heads"], r["batch"]) == (arm, "plain", batch)), None)


def prefill_savings(rows: Sequence[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """By length, what LS saves against each of the peers' kernels."""
    rows = [row for row in rows if "failed" not in row]
    shares = {n: saved([row for row in rows if row["n"] == n]) for n in dict.fromkeys(row["n"] for row in rows)}
    return {n: {arm: share for arm, share in by_arm.items() if arm != "plain"} for n, by_arm in shares.items()}


def table(results: dict[str, Any]) -> str:
    """Markdown: a table of each part that was measured, then the goals."""
    makers = {"cache": _cache, "speed": _speed, "batch": _batch, "prefill": _prefill, "compiled": _compiled}
    pieces = []
    for part, make in makers.items():
        if part in results:
            pieces += make([row for row in results[part] if "failed" not in row], results)
            pieces += [f"{row.get('name') or row['arm']}: {row['failed']}" for row in results[part] if "failed" in row]
    says = {True: "yes", False: "no", None: "not measured"}
    lines = [("goal", "target", "value", "reached")]
    for row in results["goals"]:
        value = "" if row["value"] is None else f"{row['value']:.3g}"
        lines.append((row["goal"], f">= {row['target']:g}", value, says[row["reached"]]))
    return "\n\n".join([*pieces, "## Goals", _markdown(lines)])


def _cache(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[str]:
    lines: list[Sequence[str]] = [("tokens", "LS cache, MiB", "full cache, MiB", "times smaller")]
    for row in rows:
        sizes = (f"{row['bytes'][heads] / 2**20:,.1f}" for heads in ("ls", "plain"))
        lines.append((f"{row['length']:,}", *sizes, f"{row['smaller']:.2f}"))
    text = (
        "12 layers of 12 heads of 64, 1 global, window 128, 32 rows for rollback, bf16, one row; measured, and equal to"
    )
    return ["## Bytes of the cache", f"{text} the formula.", _markdown(lines)] if rows else []


def _speed(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[str]:
    lines = [("batch, context", "heads", "by", "steps", "ms a token", "tokens/s", "LS is faster by", "error")]
    for row in rows:
        lines.append(
            (
                f"{row['batch']}, {row['context']:,}",
                row["heads"],
                row["arm"],
                row["mode"],
                f"{statistics.median(row['milliseconds']):.2f}",
                f"{row['tokens_per_second']:,.1f}",
                f"{row['ls_speedup']:.2f}x" if "ls_speedup" in row else "",
                f"{row['error']:.0e}",
            )
        )
    text = f"A model of GPT-2's smallest size, the same random weights for all, {results['dtype']}; greedy; medians of"
    text += " rounds in which the arms take turns, ratios within a round. `error`: of the logits, against an uncached"
    return ["## Decoding", f"{text} pass in fp32.", _markdown(lines)] if rows else []


def _batch(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[str]:
    pieces = []
    for row in rows:
        lines: list[Sequence[str]] = [("heads", "MiB a row", "free, GiB", "rows, computed", "rows, allocated and used")]
        for heads in ("ls", "plain"):
            of = row[heads]
            sizes = (f"{of['bytes_a_row'] / 2**20:,.1f}", f"{of['free'] / 2**30:.1f}")
            lines.append((heads, *sizes, str(of["computed"]), str(of["fits"])))
        pieces += [f"## Largest batch at {row['length']:,} tokens", f"{row['ratio']:.1f} times.", _markdown(lines)]
    return pieces


def _prefill(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[str]:
    text = "The paper's 12-layer model, 1 global head and 11 with a window of 100, to the last hidden state, eager;"
    text += " plain heads by our kernel, by FlashAttention 2 and by cuDNN."
    return ["## Prefill", text, _savings(rows)] if rows else []


def _compiled(rows: Sequence[dict[str, Any]], results: dict[str, Any]) -> list[str]:
    return ["## Prefill, blocks compiled", "The same by torch.compile, block by block.", _savings(rows)] if rows else []


def _savings(rows: Sequence[dict[str, Any]]) -> str:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    savings = prefill_savings(rows)
    lines: list[Sequence[str]] = [("n", "rows", *(f"{a}, ms" for a in arms), "saved against the faster")]
    for n, shares in savings.items():
        of = {row["arm"]: row for row in rows if row["n"] == n}
        times = (f"{statistics.median(of[arm]['milliseconds']):.2f}" for arm in arms)
        lines.append((f"{n:,}", str(of["ls"]["rows"]), *times, f"{min(shares.values()):.1%}"))
    return _markdown(lines)


def save(results: dict[str, Any], path: Path) -> list[Path]:
    """Write the results as JSON, and as a Markdown page beside it."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    note = f" {results['note']}" if results["note"] else ""
    text = (
        f"# Decoding on {'a GPU' if results['device'] == 'cuda' else 'a CPU'}\n\n    {results['command']}\n\n{about}."
    )
    text += f"{note} Data: [{path.name}]({path.name}).\n\n{table(results)}\n"
    return [write_json(path, results), write_atomically(path.with_suffix(".md"), text)]


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    marked = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([marked[0], "|" + "---|" * len(lines[0]), *marked[1:]])
