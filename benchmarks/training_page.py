"""Conclusions of the benchmark of training: which goals were reached, and its page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import other_shapes
from benchmarks.harness import OURS, median_ratio
from benchmarks.host import EAGER, INSIDE, SDPA
from benchmarks.loss import CCE, LIGER
from benchmarks.pages import RESULTS, Page, Results, goal, goals_table, markdown
from benchmarks.peers import FLEX, OURS_WITH_STATS
from benchmarks.steps import COMPILED, NANOGPT

PUBLISHED = {"32 x 1,024": 64.9, "8 x 4,096": 79.7, "1 x 32,768": 220.1}
"""Milliseconds of nanoGPT's own model.py, compiled, on an H200."""
STEP_GOALS = {"32 x 1,024": 0.82, "8 x 4,096": 0.70, "1 x 32,768": 0.30}

Rows = Sequence[dict[str, Any]]


def _goal(text: str, value: float | None, sign: str, target: float, source: str = "") -> dict[str, Any]:
    return goal(text, value, sign, target) | {"source": source}


def goals(results: Results, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Every goal, also those of parts that were not measured; some numbers are in results of others in `folder`."""
    of_others = _attention_goals(folder)
    return [*_step_goals(results), *_host_goals(results), *_loss_goals(results), *of_others, *_trainer_goals(results)]


def _trainer_goals(results: Results) -> Iterator[dict[str, Any]]:
    for row in _rows(results, "trainer") or [{}]:
        about = f", {row['tokens']} tokens, {row['layers']} x {row['width']}" if row else ""
        yield _goal(f"`longshort train`, tokens/s against a bare loop{about}", row.get("ratio"), ">=", 0.97)
    for caches, most in (("cold", 45), ("warm", 20)):
        usual = [row for row in _rows(results, "start") if row["piece"] == "start"]
        seconds = next((row["seconds"] for row in usual if row["caches"] == caches), None)
        yield _goal(f"from `longshort train` to the second step, {caches} caches, s", seconds, "<=", most)


def _step_goals(results: Results) -> Iterator[dict[str, Any]]:
    rows = _rows(results, "step")
    for tokens, published in PUBLISHED.items():
        median = _median(_find(rows, tokens=tokens, name=NANOGPT, how=COMPILED))
        off = None if median is None else abs(median / published - 1)
        yield _goal(f"the peer's step, {tokens}, off from nanoGPT's {published} ms by", off, "<=", 0.03)
    pairs = {
        tokens: [_find(rows, tokens=tokens, name=name, heads=heads, how=COMPILED) for name, heads in _STEP_PAIR]
        for tokens in STEP_GOALS
    }
    for tokens, most in STEP_GOALS.items():
        yield _goal(f"124M step, {tokens}, time / {NANOGPT}", _ratio(*pairs[tokens]), "<=", most)
    peaks = [[row.get("peak_bytes") for row in pair] for pair in pairs.values()]
    shares = [ours / theirs for ours, theirs in peaks if ours and theirs]
    yield _goal(f"its peak memory / {NANOGPT}, largest", max(shares, default=None), "<=", 0.65)
    vocabulary = _rows(results, "vocabulary")
    ratio = _ratio(vocabulary[1], vocabulary[0]) if len(vocabulary) == 2 else None
    yield _goal("vocabulary of 50,257, time / 50,304", ratio, "<=", 1.03)
    small = [_find(_rows(results, "small"), name=OURS, heads=heads) for heads in ("ls", "plain")]
    yield _goal("paper-6m, 16 x 2,048, LS, ms", _median(small[0]), "<=", 8)
    yield _goal("paper-6m, 16 x 2,048, LS / plain", _ratio(*small), "<=", 0.78)


_STEP_PAIR = ((OURS, "ls"), (NANOGPT, "plain"))


def _host_goals(results: Results) -> Iterator[dict[str, Any]]:
    rows = _rows(results, "host")
    for direction, most in (("forward", 30), ("backward", 60)):
        inside = _find(rows, name=OURS, how=INSIDE, direction=direction)
        yield _goal(f"host time of a call inside a compiled model, {direction}, us", _median(inside), "<=", most)
    for name, words, most in ((OURS, "", 450), (OURS_WITH_STATS, " with statistics", 520)):
        eager = _find(rows, name=name, how=EAGER, direction="forward + backward")
        yield _goal(f"host time of an eager call{words}, forward + backward, us", _median(eager), "<=", most)


def _loss_goals(results: Results) -> Iterator[dict[str, Any]]:
    rows = _rows(results, "loss")
    for peer in (LIGER, CCE):
        ratios = [
            _ratio(_find(rows, name=OURS, vocab_size=classes), _find(rows, name=peer, vocab_size=classes))
            for classes in sorted({row["vocab_size"] for row in rows})
        ]
        yield _goal(f"loss, time / {peer}", max((x for x in ratios if x is not None), default=None), "<", 1)


def _attention_goals(folder: Path) -> Iterator[dict[str, Any]]:
    """Goals of the op itself, from the results of its own benchmarks."""
    attention, source = _read(folder / "attention-gpu.json")
    summary = attention.get("summary", {})
    against = summary.get("ratios", {}).get(FLEX, {})
    for direction, most in (("forward", 0.58), ("backward", 0.56)):
        ratios = against.get(direction, {})
        yield _goal(f"attention, {direction} / {FLEX}, mean", ratios.get("geometric_mean"), "<=", most, source)
        worst = max(ratios.get("by_shape", {}).values(), default=None)
        yield _goal(f"attention, {direction} / {FLEX}, worst", worst, "<=", 0.68, source)
    others, where = _read(folder / "other-shapes.json")
    yield from (found | {"source": where} for found in other_shapes.goals(others))
    cost = max(summary.get("statistics_cost", {}).values(), default=None)
    yield _goal("statistics, added to forward, worst", cost, "<=", 0.08, source)
    decode, source = _read(folder / "decode-attention.json")
    ratios = [row["ratio"] for shape in decode.get("shapes", [])[:7] for row in shape["rows"] if row["name"] == OURS]
    yield _goal("decode attention / two SDPA calls, worst", max(ratios, default=None), "<=", 0.62, source)


def _read(path: Path) -> tuple[Results, str]:
    """Results of another benchmark, and what a reader must know about them; empty if there are none."""
    if not path.is_file():
        return {}, ""
    found = json.loads(path.read_text(encoding="utf-8"))
    return found, f"{path.name} at {str(found.get('commit'))[:7]}"


def _rows(results: Results, part: str) -> list[dict[str, Any]]:
    return [row for row in results.get(part, []) if "failed" not in row]


def _find(rows: Rows, **wanted: Any) -> dict[str, Any]:
    """The first row with these values, or an empty one."""
    return next((row for row in rows if all(row.get(key) == value for key, value in wanted.items())), {})


def _times(row: dict[str, Any]) -> list[float]:
    times: list[float] = row.get("milliseconds") or row.get("microseconds") or []
    return times


def _median(row: dict[str, Any]) -> float | None:
    return statistics.median(_times(row)) if _times(row) else None


def _ratio(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    return median_ratio(_times(one), _times(other)) if _times(one) and _times(other) else None


def tables(results: Results) -> str:
    """A table for each part that was measured, then the goals."""
    pieces = []
    for part, (title, text, make) in _TABLES.items():
        if part in results:
            pieces += [f"## {title}", text, make(_rows(results, part))]
            pieces += [_failure(row) for row in results[part] if "failed" in row]
            commits = {row["commit"] for row in results[part] if "commit" in row}
            pieces += [f"Measured at commit {commit}." for commit in sorted(commits)]
    return "\n\n".join([*pieces, "## Goals", goals_table(results["goals"])])


def _failure(row: dict[str, Any]) -> str:
    known = ("tokens", "vocab_size", "name", "heads", "how", "direction")
    return f"{', '.join(str(row[key]) for key in known if key in row)}: {row['failed']}"


def _steps_table(rows: Rows) -> str:
    lines = []
    for row in rows:
        rival = _find(rows, tokens=row["tokens"], name=NANOGPT, how=row["how"])
        lines.append(
            (
                row["tokens"],
                row["name"],
                _heads(row),
                row["how"],
                f"{row['vocab_size']:,}",
                _ms(row),
                _number(_ratio(row, rival)),
                _gib(row),
            )
        )
    header = ("tokens", "by", "heads", "how", "vocabulary", "ms", f"/ {NANOGPT}", "peak, GiB")
    return markdown(header, lines)


def _small_table(rows: Rows) -> str:
    plain = _find(rows, name=OURS, heads="plain")
    lines = [(r["tokens"], r["name"], _heads(r), r["how"], _ms(r), _number(_ratio(r, plain))) for r in rows]
    return markdown(("tokens", "by", "heads", "how", "ms", "/ ours, plain"), lines)


def _models_table(rows: Rows) -> str:
    lines = [(r["piece"].partition(":")[2], r["tokens"], r["how"], _ms(r), _gib(r)) for r in rows]
    return markdown(("model", "tokens", "how", "ms", "peak, GiB"), lines)


def _host_table(rows: Rows) -> str:
    lines = [(r["shape"], r["how"], r["name"], r["direction"], f"{_median(r):,.1f}") for r in rows]
    return markdown(("shape", "how", "by", "direction", "us"), lines)


def _loss_table(rows: Rows) -> str:
    lines = [
        (f"{r['tokens']:,}", f"{r['vocab_size']:,}", r["name"], _ms(r), _gib(r), f"{r['gradient_error']:.1e}")
        for r in rows
    ]
    return markdown(("tokens", "vocabulary", "by", "ms", "peak, GiB", "error of gradients"), lines)


def _trainer_table(rows: Rows) -> str:
    lines = []
    for row in rows:
        rates = (f"{statistics.median(row['tokens_per_second'][key]):,.0f}" for key in ("trainer", "own", "bare"))
        lines.append((row["tokens"], f"{row['layers']} x {row['width']}", *rates, f"{row['ratio']:.3f}"))
    said = [f"{row['tokens']}, it says: {text}" for row in rows for text in row["said"]]
    header = ("tokens", "model", "tokens/s, trainer", "in its log", "bare loop", "ratio")
    return "\n\n".join([markdown(header, lines), *said])


def _start_table(rows: Rows) -> str:
    lines = [
        (
            r["tokens"],
            str(r["layers"]),
            r["scope"],
            r["caches"],
            f"{r['seconds_to_first']:.1f}",
            f"{r['seconds']:.1f}",
        )
        for r in rows
    ]
    return markdown(("tokens", "layers", "compiled by", "caches", "s to the first step", "s to the second"), lines)


def _heads(row: dict[str, Any]) -> str:
    return f"LS, window {row['window']}" if row["heads"] == "ls" else "plain"


def _ms(row: dict[str, Any]) -> str:
    return f"{_median(row):,.1f}"


def _gib(row: dict[str, Any]) -> str:
    return "" if row.get("peak_bytes") is None else f"{row['peak_bytes'] / 2**30:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


_TABLES: dict[str, tuple[str, str, Callable[[Rows], str]]] = {
    "step": (
        "Whole steps, 124M parameters",
        """12 layers of width 768 with 12 heads, learned positions, no biases, tied head. The peer has the shapes and
the behaviour of nanoGPT's model.py: SDPA, all logits at once. Compiled as a whole. The peak is what a step needs beyond
what was there before the model: weights, optimizer, activations.""",
        _steps_table,
    ),
    "vocabulary": (
        "A vocabulary that is not a multiple of 64",
        "The same model with the vocabulary of GPT-2's tokenizer and with the next multiple of 64.",
        _steps_table,
    ),
    "small": (
        "Whole steps, paper-6m",
        "Ours as `longshort train` runs it by default; the peer compiled with CUDA graphs.",
        _small_table,
    ),
    "models": (
        "Whole steps of presets",
        """As their names say; recomputed: `run.checkpoint_activations=true`; block by block: `run.compile_scope=block`.
`longshort plan` is held to them.""",
        _models_table,
    ),
    "host": (
        "Host time of one attention call",
        f"""Many calls in a row, at shapes so small that the GPU is never waited for. {FLEX} is compiled; {SDPA} attends
to everything. Inside a compiled model: what one more layer of a stack of attention layers adds. Hosts differ, and one
host from run to run, by half and more: compare within a table. Two commits in turns on one machine:
[host-h200.txt](../../benchmarks/results/host-h200.txt).""",
        _host_table,
    ),
    "loss": (
        "The loss by itself",
        """Forward and backward of the head and its cross-entropy. The peak includes the gradients, not the inputs.
Errors are relative to the norm of the gradients of all logits at once.""",
        _loss_table,
    ),
    "trainer": (
        "The trainer",
        """`longshort train` with its defaults against a bare loop over the same model and step (gradient clipping
included), whose batches are already on the GPU; by the clock.""",
        _trainer_table,
    ),
    "start": (
        "The start",
        """From the start of the process `longshort train` to its second step; caches of compiled code empty, then full.
Compiled by: `run.compile_scope`.""",
        _start_table,
    ),
}

PAGE = Page(
    name="training",
    title="What a training step takes",
    command="python -m benchmarks training --out benchmarks/results/training.json",
    about=lambda results: (
        """Forward, loss, backward and fused AdamW under bf16 autocast on random tokens, TF32 allowed;
our settings are the defaults. Entrants of a table take turns; medians over rounds."""
    ),
    tables=tables,
)
