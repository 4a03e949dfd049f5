"""The page on looking into models: its numbers are those of the data, and its code runs."""

import json
import re
from pathlib import Path

from longshort.report.heads import summary

from ..hf.inspection.models import folder_of, model_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "inspect.md").read_text(encoding="utf-8")


def data(name):
    return json.loads((ROOT / "docs" / "results" / f"small-llama-{name}.json").read_text())


def test_the_example_is_what_was_measured():
    record, converted = data("inspect"), data("convert")
    assert f"    {summary(record)}\n" in PAGE and converted["plans"] == record["proposal"]["plans"]
    loss = converted["loss"]
    assert (
        f"{loss['before']:.4f} before, {loss['planned']:.4f} with the plan, {loss['after']:.4f} after 60 steps" in PAGE
    )
    assert abs(loss["before"] - record["loss"]) < 1e-4 and abs(loss["planned"] - record["proposal"]["loss"]) < 1e-4
    full = data("convert-full")["loss"]["after"]
    assert f"end at {full:.4f}" in PAGE and f"still costs {loss['after'] - full:.3f}" in PAGE
    lost = record["proposal"]["candidates"][record["proposal"]["chosen"]]["lost"]
    assert f"drops {100 * lost:.0f} % of the heads' attention" in PAGE
    assert max(score for row in record["heads"]["induction"] for score in row) < 0.01


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_of(model_of("llama"), tmp_path / "small")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names = {}
    exec(code, names)
    assert len(names["record"]["heads"]["window_99"]) == 2
