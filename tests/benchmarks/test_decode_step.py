"""The benchmark of one decoding step's attention: what of it needs no GPU."""

import json

import pytest
import torch

from benchmarks import decode_step as bench
from benchmarks.harness import OURS, Recorder, WrongResult
from benchmarks.shapes import Shape

pytest.importorskip("triton", reason="the package triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the kernels are not interpreted")

SMALL = Shape(batch=2, heads=3, length=70, head_dim=16, window=9)


def run(tried, out=None):
    return bench.run(Recorder(out, command="a command"), shapes=[SMALL], device="cpu", rounds=2, tried=tried)


@pytest.mark.slow
def test_it_runs_from_drawing_to_the_page(tmp_path):
    tried, out = [(16, 4, 1, 1.0), (32, 4, 1, 4.0)], tmp_path / "decode.json"
    (shape,) = run(tried, out)["shapes"]
    assert [row["shape"] for row in shape["search"]] == [list(numbers) for numbers in tried]
    assert shape["best"] in [list(numbers) for numbers in tried]
    assert shape["bytes"] == 4 * 2 * 16 * (2 * 3 + 2 * 70 + 2 * 2 * 9)
    rows = {row["name"]: row for row in shape["rows"]}
    assert rows[bench.TWO_CALLS]["ratio"] == 1 and len(rows[OURS]["microseconds"]) == 2
    assert all(row["error"] < 1e-4 for row in rows.values())
    assert json.loads(out.read_text())["shapes"] == [shape]
    page = out.with_suffix(".md").read_text()
    assert "a command" in page and str(SMALL) in page and "(16, 2, DecodeShape(" in page


@pytest.mark.slow
def test_a_wrong_result_ends_it(monkeypatch):
    monkeypatch.setattr(bench, "two_calls", lambda inputs: lambda: inputs.q * 0)
    with pytest.raises(WrongResult, match="two SDPA calls is wrong"):
        run([(32, 4, 1, 1.0)])


def test_a_step_can_be_taken_again_and_gives_the_same():
    step = bench.our_step(SMALL, bench.draw(SMALL, "cpu", 0))
    assert torch.equal(step(), step())


def test_goals_are_those_of_the_seven_shapes():
    def measured(shape, ratio):
        row = {"name": OURS, "microseconds": [8.0], "ratio": ratio, "limits": 2.0}
        about = {"head_dim": 64, "slots": 1, "bytes": 20e6, "limit_microseconds": 4.0, "best": [64, 4, 2, 1.0]}
        return {"shape": str(shape), "rows": [row], **about}

    results = {"shapes": [measured(bench.SHAPES[0], 0.55), measured(bench.SHAPES[-1], 0.9) | {"commit": "0123"}]}
    assert "every shape but the large batches: 0.55 (goal <= 0.6: yes)" in bench.tables(results)
    assert f"{bench.SHAPES[-1]}: measured at commit 0123" in bench.tables(results)
