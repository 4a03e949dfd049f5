"""The times of LaS and of slopes by length: only of forms that are right; the guides hold what was measured."""

import json
import re

import pytest
import torch

from benchmarks import forms
from benchmarks.forms import FORMS, Form
from benchmarks.harness import Recorder, WrongResult
from benchmarks.pages import PAGES, RESULTS

DOCS = PAGES.parent
GUIDE = (DOCS / "ideas" / "las.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.every(2)
def test_every_form_agrees_with_the_reference_and_has_a_time(kind):
    results = forms.run(Recorder(), kind, lengths=(64,), repeats=1)
    assert [row["form"] for row in results["rows"]] == [form.name for form in FORMS[kind]]
    assert all(row["milliseconds"]["64"] > 0 for row in results["rows"])


def test_a_form_that_is_wrong_is_not_timed():
    wrong = Form("wrong", "", lambda q, k, v, backend: (q + k + v) * (2 if backend == "auto" else 1))
    with pytest.raises(WrongResult, match="wrong disagrees with the reference"):
        forms.run(Recorder(), "las", forms=[wrong])


@pytest.mark.parametrize(
    ("name", "guide", "first", "shown"),
    [("las-cpu", "ideas/las.md", 3, 4), ("slopes-cpu", "notes/kernel-notes.md", 2, 5)],
)
def test_the_table_of_the_guide_holds_the_measured_numbers(name, guide, first, shown):
    text = (DOCS / guide).read_text(encoding="utf-8")
    times = {}
    for row in json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]:
        for line in re.findall(rf"^\| `{row['form']}` \|.*$", text, re.M):
            times[row["form"]] = [float(cell.replace(",", "")) for cell in line.split("|")[first:-1]]
            assert times[row["form"]] == list(row["milliseconds"].values())
    assert len(times) == shown


def test_python_of_the_guide_runs():
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(examples) == 3
    for example in examples:
        scope = {"__name__": "example"}
        exec(compile(example, "docs/ideas/las.md", "exec"), scope)
    assert torch.is_tensor(scope["out"])
