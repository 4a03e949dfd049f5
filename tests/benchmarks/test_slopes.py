"""The times of attention with slopes: only of forms that are right, and the notes hold what was measured."""

import json
import re
from pathlib import Path

from benchmarks import las, slopes

DOCS = Path(__file__).parents[2] / "docs"


def test_every_form_agrees_with_the_reference_and_has_a_time():
    result = las.measure(lengths=(256,), repeats=1, forms=slopes.FORMS)
    assert [row["form"] for row in result["rows"]] == list(slopes.FORMS)
    assert all(row["milliseconds"]["256"] > 0 for row in result["rows"])


def test_the_kernel_notes_hold_the_measured_numbers():
    measured = json.loads((DOCS / "results" / "slopes-cpu.json").read_text(encoding="utf-8"))
    notes = (DOCS / "kernel-notes.md").read_text(encoding="utf-8")
    for row in measured["rows"]:
        (line,) = re.findall(rf"^\| `{row['form']}` \|.*$", notes, re.M)
        shown = [float(cell.replace(",", "")) for cell in line.split("|")[2:-1]]
        assert shown == list(row["milliseconds"].values())
