"""The benchmark times nothing that it has not checked, and says what it measured."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks import attention as benchmark
from benchmarks import registry
from benchmarks.__main__ import app
from benchmarks.registry import CPU_IMPLEMENTATIONS, Implementation, Shape

SMALL = Shape(batch=2, heads=3, length=150, head_dim=8, window=16)


def wrong_by_one_key(shape):
    return registry.ours("local")(replace(shape, window=shape.window + 1))


@pytest.mark.parametrize("implementation", CPU_IMPLEMENTATIONS, ids=lambda i: f"{i.name} {i.work}")
def test_every_registered_implementation_computes_what_it_says(implementation):
    assert benchmark.check(implementation, SMALL) < 2e-5


def test_an_implementation_that_is_wrong_is_never_timed():
    wrong = Implementation(name="one key too many", work="local", build=wrong_by_one_key)
    with pytest.raises(RuntimeError, match=r"one key too many \(local\) is wrong at B2 H3 T150 D8 w16"):
        benchmark.run(shapes=[SMALL], implementations=[wrong], rounds=1)


def test_ours_is_compared_with_full_attention_and_with_the_fastest_local_peer():
    results = benchmark.run(shapes=[SMALL], rounds=2)
    ours = {(row["work"], row["direction"]): row for row in results["rows"] if row["name"] == "longshort"}
    assert {row["against"] for key, row in ours.items() if key[0] == "ls"} == {"sdpa causal"}
    assert all(
        row["against"] in ("sdpa band mask", "local-attention") for key, row in ours.items() if key[0] == "local"
    )
    assert all(len(row["milliseconds"]) == 2 and row["speedup"] > 0 for row in ours.values())


def test_a_missing_peer_is_left_out_and_named():
    said = []
    absent = replace(CPU_IMPLEMENTATIONS[-1], missing=lambda: "pip install it")
    results = benchmark.run(shapes=[SMALL], implementations=[absent], rounds=1, progress=said.append)
    assert results["rows"] == []
    assert said[0] == f"left out {absent.name}: pip install it"


def test_the_verb_prints_the_table_and_writes_json_and_markdown(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "CPU_SHAPES", (SMALL,))
    out = tmp_path / "speed.json"
    shown = CliRunner().invoke(app, ["--quick", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    rows = json.loads(out.read_text())["rows"]
    assert {row["name"] for row in rows} == {i.name for i in CPU_IMPLEMENTATIONS}
    page = out.with_suffix(".md").read_text()
    assert page.count(str(SMALL)) == len(rows)
    assert "python -m benchmarks --rounds 2 --threads" in page


def test_the_verb_ends_in_one_line_where_a_check_fails(monkeypatch):
    monkeypatch.setattr(registry, "CPU_SHAPES", (SMALL,))
    monkeypatch.setattr(benchmark, "_TOLERANCE", 0.0)
    shown = CliRunner().invoke(app, ["--quick"])
    assert shown.exit_code == 1
    assert "error: " in shown.output and "is wrong at" in shown.output
