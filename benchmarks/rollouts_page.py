"""Conclusions of the benchmark of rollouts: which goals were reached, and its page."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.harness import OURS, median_ratio
from benchmarks.pages import Page, Results, goal, goals_table, markdown

DISCRETE, SOFT = "discrete", "soft"
GPT2, HF = "transformers' generate, GPT-2", "transformers' generate, LongShortForCausalLM"
PLACES = (1, 3, 5, 7)
"""Eighths of a long rollout at which its steps are timed: their mean is that of all steps, whose time grows evenly."""


def goals(results: Results) -> list[dict[str, Any]]:
    """Each goal, the number that decides it, and whether it was reached; only for parts that were measured."""
    found: list[dict[str, Any]] = []

    def at_least(text: str, value: float | None, target: float) -> None:
        found.append(goal(text, value, ">=", target) | {"target": target})

    short = {(r["name"], r["heads"], r["how"]): r for r in results.get("short", []) if "failed" not in r}

    def faster(one: tuple[str, str, str], other: tuple[str, str, str]) -> float | None:
        if one not in short or other not in short:
            return None
        return median_ratio(short[other]["milliseconds"], short[one]["milliseconds"])

    if "short" in results:
        soft, discrete, plain = (OURS, "ls", SOFT), (OURS, "ls", DISCRETE), (OURS, "plain", DISCRETE)
        at_least("soft rollouts, sequences/s", short[soft]["sequences_per_second"] if soft in short else None, 5000)
        at_least("soft rollouts, share of the discrete rate", faster(soft, discrete), 0.8)
        at_least(f"discrete, plain heads, times {GPT2}", faster(plain, (GPT2, "plain", DISCRETE)), 10)
        at_least(f"discrete, LS heads, times {HF}", faster(discrete, (HF, "ls", DISCRETE)), 10)
    for length, batch, ratio in long_ratios(results):
        if length == 32768:
            at_least(f"tokens/s at {length:,} tokens, batch {batch}, times plain heads", ratio, 3)
    return found


def long_ratios(results: Results) -> list[tuple[int, int, float]]:
    """Length, batch, and how many times as many tokens per second LS heads draw as plain heads."""
    rates = {
        (row["length"], row["batch"], row["heads"]): row["tokens_per_second"]
        for row in results.get("long", [])
        if "failed" not in row
    }
    return [
        (length, batch, rate / rates[length, batch, "plain"])
        for (length, batch, heads), rate in rates.items()
        if heads == "ls" and (length, batch, "plain") in rates
    ]


def tables(results: Results) -> str:
    """A table for each part that was measured, then the goals."""
    pieces = []
    for part, make in (("short", _short_table), ("long", _long_table), ("batch", _batch_table)):
        if part in results:
            rows = [row for row in results[part] if "failed" not in row]
            pieces += make(rows, results) if rows else []
            pieces += [f"{row['name']}: {row['failed']}" for row in results[part] if "failed" in row]
    return "\n\n".join([*pieces, "## Goals", goals_table(results["goals"])])


def _short_table(rows: list[dict[str, Any]], results: Results) -> list[str]:
    lines = [
        (
            row["name"],
            row["heads"],
            row["how"],
            f"{statistics.median(row['milliseconds']):,.1f}",
            f"{row['sequences_per_second']:,.0f}",
            f"{row['off']:+.3f}",
        )
        for row in rows
    ]
    sizes = results["sizes"]
    text = f"""{sizes["batch"]:,} sequences of {sizes["new_tokens"]} tokens after prompts of {sizes["prompt"]}, by a
model of {sizes["n_layer"]} layers of width {sizes["n_embd"]} with {sizes["n_head"]} heads and a vocabulary of
{sizes["vocab_size"]:,}, in {results["dtype"]}, with the same random weights for all; LS: one global head, the rest with
a window of {sizes["window"]}. Medians of rounds in which all take turns, reading the prompts included. `off`: how much
more surprising the draws are than they should be, in nats per token."""
    header = ("by", "heads", "draws", "ms", "sequences/s", "off")
    return ["## Short rollouts", text, markdown(header, lines)]


def _long_table(rows: list[dict[str, Any]], results: Results) -> list[str]:
    ratios = {(length, batch): ratio for length, batch, ratio in long_ratios(results)}
    lines = [
        (
            f"{row['length']:,}",
            str(row["batch"]),
            row["heads"],
            *(f"{statistics.median(times):.2f}" for times in row["milliseconds"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{ratios[row['length'], row['batch']]:.2f}x" if (row["length"], row["batch"]) in ratios else "",
        )
        for row in rows
    ]
    text = """Steps of discrete rollouts, timed where one, three, five and seven eighths of the tokens are there. The
mean of these times is that of all steps. Rotary positions."""
    places = (f"ms per step at {eighth}/8" for eighth in PLACES)
    header = ("tokens", "batch", "heads", *places, "tokens/s", "LS is faster by")
    return ["## Long rollouts", text, markdown(header, lines)]


def _batch_table(rows: list[dict[str, Any]], results: Results) -> list[str]:
    lines = [
        (
            f"{row['length']:,}",
            *(f"{row[heads]['bytes_a_row'] / 2**20:,.2f}" for heads in ("ls", "plain")),
            *(f"{row[heads]['fits']:,}" for heads in ("ls", "plain")),
            f"{row['ratio']:.1f}x",
        )
        for row in rows
    ]
    header = ("tokens", "MiB per sequence, LS", "plain", "largest batch, LS", "plain", "times as large")
    return ["## Largest batch", "Caches that fit in the memory beside the model, in use.", markdown(header, lines)]


PAGE = Page(
    name="rollouts",
    title="Rollouts",
    command="python -m benchmarks rollouts --device cuda --out benchmarks/results/rollouts.json",
    about=lambda results: "How fast a model draws what reinforcement learning learns from.",
    tables=tables,
)
