"""Plans of steps that were measured on an H200 come close to what was measured."""

import json
import statistics
from pathlib import Path

import pytest

from longshort import GPTConfig
from longshort.planning import Job, Machines, Settings, estimate

RESULTS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "training.json").read_text())
SIZES = {
    "step": {"n_layers": 12, "width": 768, "n_heads": 12, "vocab_size": 50_304, "tie_embeddings": True},
    "small": {"n_layers": 6, "width": 192, "n_heads": 6, "vocab_size": 10_000},
}
ROWS = [
    (part, row)
    for part in SIZES
    for row in RESULTS[part]
    if row["name"] == "longshort" and row["how"] in ("compiled", "as trained")
]


WAYS = ("compiled", "compiled, recomputed")
PRESETS = [row for row in RESULTS.get("models", []) if "failed" not in row and row["how"] in WAYS]


def planned(part, row):
    batch, length = (int(number.replace(",", "")) for number in row["tokens"].split(" x "))
    if part == "models":
        job = Job(model=GPTConfig.preset(row["piece"].partition(":")[2]), length=length, batch=batch)
        again = row["how"] == "compiled, recomputed"
        return estimate(job, Settings(checkpoint_activations=again), Machines())
    reach = {"n_global": 1, "window": row["window"]} if row["heads"] == "ls" else {}
    model = GPTConfig(context=length, **SIZES[part], **reach)
    return estimate(Job(model=model, length=length, batch=batch), Settings(), Machines())


def line(part, row):
    """A line of the page."""
    found, ms = planned(part, row), statistics.median(row["milliseconds"])
    name = {"step": "124M", "small": "paper-6m"}.get(part, row["piece"].partition(":")[2])
    cells = [name, row["tokens"], row["heads"] + row["how"].removeprefix("compiled").removeprefix("as trained")]
    cells += [f"{ms:.1f}", f"{1e3 * found.seconds:.1f}", f"{1e3 * found.seconds / ms - 1:+.1%}"]
    peak = row.get("peak_bytes")
    cells += ["", f"{found.bytes / 1e9:.2f}", ""] if peak is None else []
    cells += [] if peak is None else [f"{peak / 1e9:.2f}", f"{found.bytes / 1e9:.2f}", f"{found.bytes / peak - 1:+.1%}"]
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize(("part", "row"), ROWS, ids=[f"{row['tokens']} {row['heads']}" for _, row in ROWS])
def test_a_step_takes_what_was_measured(part, row):
    found = planned(part, row)
    assert 1e3 * found.seconds == pytest.approx(statistics.median(row["milliseconds"]), rel=0.10)
    if "peak_bytes" in row:
        assert found.bytes == pytest.approx(row["peak_bytes"], rel=0.01)


@pytest.mark.parametrize("row", PRESETS, ids=[f"{row['piece']} {row['how']}" for row in PRESETS])
def test_a_preset_takes_what_was_measured(row):
    found = planned("models", row)
    assert 1e3 * found.seconds == pytest.approx(statistics.median(row["milliseconds"]), rel=0.15)
    assert found.bytes == pytest.approx(row["peak_bytes"], rel=0.10)


def test_eight_steps_and_three_presets_in_two_ways_were_compared():
    assert (len(ROWS), len(PRESETS)) == (8, 6)


def test_the_page_has_the_same_numbers():
    page = (Path(__file__).parents[2] / "docs" / "howto" / "plan.md").read_text(encoding="utf-8")
    rows = [*ROWS, *(("models", row) for row in PRESETS)]
    assert [text for part, row in rows if (text := line(part, row)) not in page] == []
