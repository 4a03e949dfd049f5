"""How much time does a full forward pass save? LS-attention against plain attention by FlashAttention 2 and by cuDNN.

The paper reports inference up to 36 % faster than FlashAttention 2. What counts is the whole pass, not attention alone,
at lengths where attention matters: two of the paper's models at seven lengths, timed eagerly and in a CUDA graph.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import prefill
from experiments.engine import figures, measures, tables
from experiments.engine.evidence import HOLDS, PARTLY, interval, verdict_of
from experiments.engine.measurement import machine
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Message, Options
from experiments.engine.sweep import remember_command
from experiments.engine.tables import shown
from longshort.files import write_json
from longshort.train.identity import git_revision
from longshort.train.machine.distributed import choose_device

NAME = "latency"
PRESETS = ("paper-6m", "paper-12l-768")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
ROUNDS = 3
EAGER, GRAPH = "eager", "graph"
TIMINGS = {
    EAGER: "Eager passes, which include Python's time (the larger part in the small model):",
    GRAPH: "Passes replayed in a CUDA graph, which show the GPU's time alone:",
}
"""How passes are timed, and what the page says about it."""
RESULTS = "results.json"
PAPER_SAVES = 0.36


def measure(options: Options, message: Message) -> None:
    """Time every model, length and variant; the variants take turns in every round."""
    device = choose_device(options.device)
    if device.type != "cuda" and not options.quick:
        raise ValueError(f"latency needs a CUDA GPU, and --device is {device}; --quick runs a small version on a CPU")
    presets, lengths = (("tiny",), (128, 256)) if options.quick else (PRESETS, LENGTHS)
    remember_command(options.out)
    rows = []
    for preset in presets:
        for length in lengths:
            tokens = length if options.quick else prefill.TOKENS
            for timing in TIMINGS:
                how: dict[str, Any] = {"device": device.type, "rounds": ROUNDS, "graph": timing == GRAPH}
                measured = prefill.measure(preset, length, tokens=tokens, **how)
                rows += [row | {"timing": timing} for row in measured]
                times = [f"{row['variant']} {statistics.median(row['milliseconds']):.2f} ms" for row in measured]
                message(f"{preset}, n {length}, {timing}: {', '.join(times)}")
    write_json(options.out / RESULTS, {"commit": git_revision(), "machine": machine(device.type), "rows": rows})


def collect(folder: Path) -> Data:
    """Medians, and what LS saves against each plain kernel."""
    results = measures.results_in(folder, RESULTS, NAME)
    cells: dict[tuple[str, int, str], list[Row]] = {}
    for row in results["rows"]:
        cells.setdefault((row["model"], row["n"], row["timing"]), []).append(row)
    rows = [
        {
            "model": model,
            "n": n,
            "timing": timing,
            "milliseconds": {row["variant"]: statistics.median(row["milliseconds"]) for row in of},
            "saved": prefill.saved(of),
        }
        for (model, n, timing), of in cells.items()
    ]
    made = {name: results[name] for name in ("commit", "machine")} | {"commands": measures.commands(folder)}
    return {"provenance": made, "rows": rows, "measured": results["rows"]}


def timed(data: Data, timing: str) -> list[Row]:
    return [row for row in data["rows"] if row["timing"] == timing]


def table(data: Data) -> str:
    return _table(timed(data, EAGER), TIMINGS[EAGER])


def graph_table(data: Data) -> str:
    return _table(timed(data, GRAPH), TIMINGS[GRAPH])


def _table(rows: Sequence[Row], about: str) -> str:
    if not rows:
        return "Not measured.\n"
    names = list(rows[0]["milliseconds"])
    header = (
        "model",
        "n",
        "rounds",
        *(f"{name}, ms" for name in names),
        *(f"saved against {n}" for n in names if n != "ls"),
    )
    lines = [
        (
            row["model"],
            row["n"],
            ROUNDS,
            *(shown(ms, 4) for ms in row["milliseconds"].values()),
            *(f"{share:.0%}" for share in row["saved"].values()),
        )
        for row in rows
    ]
    return f"{about}\n\n{tables.markdown(header, lines)}"


def judge(data: Data) -> Finding:
    """Judge by the saving against FlashAttention 2, which the paper compares with, in every cell."""
    cells = sorted(timed(data, EAGER), key=lambda row: float(row["saved"]["plain-flash"]))
    saved = [row["saved"]["plain-flash"] for row in cells]
    lower = [_is_lower(data, row) for row in cells]
    faster = lower.count(True)
    ends = " to ".join(
        f"{-100 * row['saved']['plain-flash']:+.0f} % ({row['model']}, n {row['n']:,})" for row in (cells[-1], cells[0])
    )
    verdict = verdict_of(lower)
    if verdict == HOLDS and saved[-1] < PAPER_SAVES:
        verdict = PARTLY
    ours = f"{ends}; lower in {faster}, higher in {lower.count(False)} of {len(cells)} cells"
    return Finding(ours=ours, verdict=verdict, seeds=())


def _is_lower(data: Data, cell: Row) -> bool | None:
    """Does LS take less time than FlashAttention 2? By the interval over rounds, in which the two take turns."""
    times = {
        row["variant"]: row["milliseconds"]
        for row in data["measured"]
        if all(row[key] == cell[key] for key in ("model", "n", "timing"))
    }
    rounds = zip(times["ls"], times["plain-flash"], strict=True)
    return interval([math.log(mine / theirs) for mine, theirs in rounds]).is_below()


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    panels = []
    for model in dict.fromkeys(row["model"] for row in data["rows"]):
        for timing in dict.fromkeys(row["timing"] for row in data["rows"]):
            points = [
                {"series": row["variant"], "detail": "", "n": row["n"], **_rounds(row["milliseconds"])}
                for row in data["measured"]
                if (row["model"], row["timing"]) == (model, timing)
            ]
            axes: dict[str, Any] = {"x": "n", "y": "ms", "x_title": "n", "y_title": "forward pass, ms"}
            axes |= {"title": f"{model}, {timing}", "names": prefill.VARIANTS}
            panels.append(figures.lines(points, log=True, log_x=True, points=True, width=330, **axes))
    alt = drawing()
    return alt.vconcat(*(alt.hconcat(*panels[i : i + 2]) for i in range(0, len(panels), 2)))


def _rounds(times: Sequence[float]) -> Row:
    return {"ms": statistics.median(times), "low": min(times), "high": max(times)}


EXPERIMENT = Experiment(
    name=NAME,
    question="How much time does a full forward pass save?",
    method=(
        "Forward pass and loss of the paper's 6-layer and 12-layer models in bf16 (autocast), 32,768 tokens per pass, "
        "not compiled; the GPU's cache is emptied before each eager pass. Plain attention is computed by our kernel, "
        "FlashAttention 2 and cuDNN (PyTorch's SDPA). The claim is judged by eager passes."
    ),
    cost="H200: about 3 minutes; CPU --quick: seconds",
    caption="Milliseconds per forward pass of 32,768 tokens against the length n, by model and way of timing: medians "
    "and ranges of three rounds.",
    claims={
        "latency": Claim(
            text="inference latency of the full forward pass, LS against FlashAttention 2",
            paper="up to 36 % lower (44 % in a later version)",
            rule="eager passes of both models at all lengths: holds if LS takes less time in every cell and at least "
            f"{PAPER_SAVES:.0%} less in one of them, partly if it takes less in some; less or more counts where the "
            "paired 95 % interval over rounds excludes 0",
            judge=judge,
        ),
    },
    collect=collect,
    table=table,
    more=graph_table,
    figure=figure,
    measure=measure,
)
