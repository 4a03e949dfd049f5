"""The full forward pass at inference: LS-attention against plain attention by FlashAttention 2 and by cuDNN."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import prefill
from benchmarks.harness import machine
from experiments.engine import figures, measures
from experiments.engine.recipe import FAILS, HOLDS, PARTLY, Claim, Finding, Options, Recipe, Summary
from experiments.engine.sweep import remember_command
from longshort.files import write_json
from longshort.train.distributed import choose_device

PRESETS = ("paper-6m", "paper-12l-768")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
ROUNDS = 3
EAGER, GRAPH = "eager", "graph"
TIMINGS = {
    EAGER: "Eager, Python's time included, which is the longer one in the small model:",
    GRAPH: "Replayed in a CUDA graph, the GPU's time alone:",
}
"""How passes are timed, and what the page says of it."""
RESULTS = "results.json"
CLAIM = 0.36


def measure(options: Options, message: Callable[[str], None]) -> None:
    """Every model, length and arm; arms take turns, and a row is the median over rounds."""
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
                times = [f"{row['arm']} {statistics.median(row['milliseconds']):.2f} ms" for row in measured]
                message(f"{preset}, n {length}, {timing}: {', '.join(times)}")
    write_json(options.out / RESULTS, {"machine": machine(device.type), "rows": rows})


def summarise(folder: Path) -> Summary:
    """Medians, and what LS saves against the faster of the two plain kernels."""
    path = folder / RESULTS
    if not path.is_file():
        raise ValueError(f"{folder} holds no {RESULTS}; run `python -m experiments latency` first")
    results = measures.read_json(path)
    cells: dict[tuple[str, int, str], dict[str, float]] = {}
    for row in results["rows"]:
        place = (row["model"], row["n"], row.get("timing", EAGER))
        cells.setdefault(place, {})[row["arm"]] = statistics.median(row["milliseconds"])
    rows = [
        {"model": model, "n": n, "timing": timing, "milliseconds": times, "saved": _saved(times)}
        for (model, n, timing), times in cells.items()
    ]
    commands = folder / "commands.json"
    made = {"machine": results["machine"], "commands": measures.read_json(commands) if commands.is_file() else []}
    data = {"provenance": made, "rows": rows, "measured": results["rows"]}
    timed = {timing: [row for row in rows if row["timing"] == timing] for timing in TIMINGS}
    table = "\n".join(f"{heading}\n\n{_table(timed[timing])}" for timing, heading in TIMINGS.items() if timed[timing])
    return Summary(data=data, table=table, sentences=_sentences(timed[EAGER]), findings=_findings(timed[EAGER]))


def _saved(times: dict[str, float]) -> dict[str, float]:
    """The share of each plain arm's time that LS does not take."""
    return {arm: 1 - times["ls"] / ms for arm, ms in times.items() if arm != "ls"}


def _table(rows: Sequence[dict[str, Any]]) -> str:
    arms = list(rows[0]["milliseconds"])
    header = ("model", "n", *(f"{arm}, ms" for arm in arms), *(f"saved against {arm}" for arm in arms if arm != "ls"))
    return measures.markdown(
        header,
        [
            (
                row["model"],
                row["n"],
                *(measures.shown(ms, 4) for ms in row["milliseconds"].values()),
                *(f"{share:.0%}" for share in row["saved"].values()),
            )
            for row in rows
        ],
    )


def _against(row: dict[str, Any]) -> float:
    """Saved against FlashAttention 2, the paper's peer."""
    return float(row["saved"]["plain-flash"])


def _sentences(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    said = []
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        best = max(of_model, key=_against)
        gains = [row["n"] for row in of_model if _against(row) > 0]
        said.append(
            f"{model}: LS saves at most {_against(best):.0%} of the forward pass with FlashAttention 2 "
            f"(n {best['n']:,}), and is faster at {len(gains)} of {len(of_model)} lengths."
        )
    return tuple(said)


def _findings(rows: Sequence[dict[str, Any]]) -> dict[str, Finding]:
    best = max(rows, key=_against)
    ours = f"at most {_against(best):.0%} lower ({best['model']}, n {best['n']:,})"
    verdict = HOLDS if _against(best) >= CLAIM else PARTLY if _against(best) > 0.05 else FAILS
    return {"latency": Finding(ours=ours, verdict=verdict)}


def figure(data: dict[str, Any]) -> Any:
    """Milliseconds of a forward pass against n, a panel a model."""
    from longshort.report.charts import drawing

    panels = []
    for model in dict.fromkeys(row["model"] for row in data["rows"]):
        for timing in dict.fromkeys(row["timing"] for row in data["rows"]):
            points = [
                {"series": arm, "detail": "", "n": row["n"], "ms": ms}
                for row in data["rows"]
                if (row["model"], row["timing"]) == (model, timing)
                for arm, ms in row["milliseconds"].items()
            ]
            axes: dict[str, Any] = {"x": "n", "y": "ms", "x_title": "n", "y_title": "forward pass, ms"}
            axes |= {"title": f"{model}, {timing}", "names": prefill.VARIANTS}
            panels.append(figures.lines(points, log=True, log_x=True, points=True, width=260, **axes))
    return drawing().concat(*panels, columns=2)


RECIPE = Recipe(
    name="latency",
    question="How much time does a full forward pass save?",
    method=(
        "Forward and loss of the paper's 6-layer and 12-layer models, bf16 by autocast, 32,768 tokens a pass, no "
        "compile, the GPU's cache emptied before each eager one; plain attention by our kernel, FlashAttention 2 and "
        "cuDNN (PyTorch's SDPA). The claim is judged by eager passes."
    ),
    cost="H200: about 3 minutes; CPU --quick: seconds",
    claims={
        "latency": Claim(
            text="inference latency of the full forward pass, LS against FlashAttention 2",
            paper="up to 36 % lower (44 % in a later version)",
            rule=f"largest saving over models and lengths: holds from {CLAIM:.0%}, partly above 5 %",
        ),
    },
    summarise=summarise,
    figure=figure,
    measure=measure,
)
