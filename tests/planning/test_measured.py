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


def planned(part, row):
    batch, length = (int(number.replace(",", "")) for number in row["tokens"].split(" x "))
    reach = {"n_global": 1, "window": row["window"]} if row["heads"] == "ls" else {}
    model = GPTConfig(context=length, **SIZES[part], **reach)
    return estimate(Job(model=model, length=length, batch=batch), Settings(), Machines())


@pytest.mark.parametrize(("part", "row"), ROWS, ids=[f"{row['tokens']} {row['heads']}" for _, row in ROWS])
def test_a_step_takes_what_was_measured(part, row):
    found = planned(part, row)
    assert 1e3 * found.seconds == pytest.approx(statistics.median(row["milliseconds"]), rel=0.10)
    if "peak_bytes" in row:
        assert found.bytes == pytest.approx(row["peak_bytes"], rel=0.01)


def test_eight_steps_were_compared():
    assert len(ROWS) == 8
