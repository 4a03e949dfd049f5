"""`python -m benchmarks`: its commands write what they measured, and end in one line on bad input."""

import json

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import shapes
from benchmarks.__main__ import _pages, app
from benchmarks.shapes import Shape

SMALL = Shape(batch=2, heads=3, length=150, head_dim=8, window=16)


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_list_names_every_page_with_its_command():
    shown = invoke("--list")
    assert shown.exit_code == 0
    pages = _pages()
    assert pages and shown.output.count("python -m benchmarks") == len(pages)
    assert [page.name for page in pages if page.name not in shown.output] == []


@pytest.mark.slow
def test_attention_prints_its_table_and_writes_json_and_page(tmp_path, monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "cpu", (SMALL,))
    out = tmp_path / "speed.json"
    shown = invoke("attention", "--quick", "--out", out)
    assert shown.exit_code == 0, shown.output
    results = json.loads(out.read_text())
    assert results["command"] == f"python -m benchmarks attention --quick --out {out}" and results["rounds"] == 2
    page = out.with_suffix(".md").read_text()
    assert page.count(str(SMALL)) == len(results["rows"]) and results["command"] in page
    assert f"wrote {out}" in shown.output and "| sdpa causal |" in shown.output


def test_decoding_measures_the_parts_asked_for(tmp_path):
    out = tmp_path / "decoding.json"
    shown = invoke("decoding", "--parts", "cache", "--out", out)
    assert shown.exit_code == 0, shown.output
    assert "times smaller" in shown.output and "speed" not in json.loads(out.read_text())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("attention --device tpu", "device must be cpu or cuda, got 'tpu'"),
        ("attention --shapes x", "shapes must be numbers from 0 to 3"),
        ("attention --tune", "--out must name a file for the table"),
        ("decoding --parts speeed", "parts must be some of cache, speed, batch, prefill, compiled, got speeed"),
        ("decoding --attention --shapes 9", "shapes must be numbers from 0 to 8"),
        ("training --device cpu --parts steps", "parts must be some of step, step:32, vocabulary"),
        ("memory --only everything", "--only must be some of loss-full"),
    ],
)
def test_bad_input_ends_in_one_line(words, says):
    shown = invoke(*words.split())
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ") and says in shown.output and shown.output.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("words", ["attention --device cuda", "decoding --attention", "training"])
def test_without_a_gpu_what_needs_one_ends_in_one_line(words):
    shown = invoke(*words.split())
    assert (shown.exit_code, shown.output) == (1, "error: device cuda needs a GPU, and PyTorch finds none\n")
