"""The times of LaS attention: only of forms that are right, and the table in the guide holds what was measured."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks import las

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "las.md").read_text(encoding="utf-8")


def test_every_form_agrees_with_the_reference_and_has_a_time():
    result = las.measure(lengths=(256,), repeats=1)
    assert [row["form"] for row in result["rows"]] == list(las.FORMS)
    assert all(row["milliseconds"]["256"] > 0 for row in result["rows"])


def test_a_form_that_is_wrong_is_not_timed(monkeypatch):
    def wrong(q, k, v, backend="auto"):
        return (q + k + v) * (2 if backend == "auto" else 1)

    monkeypatch.setattr(las, "FORMS", {"wrong": ("", wrong)})
    with pytest.raises(RuntimeError, match="wrong disagrees with the reference"):
        las.measure(lengths=(64,))


def test_the_table_of_the_guide_holds_the_measured_numbers():
    for row in json.loads((DOCS / "results" / "las-cpu.json").read_text(encoding="utf-8"))["rows"]:
        (line,) = re.findall(rf"^\| `{row['form']}` \|.*$", GUIDE, re.M)
        shown = [float(cell.replace(",", "")) for cell in line.split("|")[3:-1]]
        assert shown == [pytest.approx(ms, rel=0.01) for ms in row["milliseconds"].values()]


def test_python_of_the_guide_runs():
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(examples) == 2
    for example in examples:
        scope = {"__name__": "example"}
        exec(compile(example, "docs/las.md", "exec"), scope)
    assert torch.is_tensor(scope["out"])
