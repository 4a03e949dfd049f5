"""The benchmark of decode attention: what of it needs no GPU."""

import json

import pytest
import torch

from benchmarks import decode_attention as bench
from benchmarks import decode_candidates
from benchmarks.gpu_check import WrongResult
from benchmarks.registry import Shape

pytest.importorskip("triton", reason="the package triton is not installed")

SMALL = Shape(batch=2, heads=3, length=70, head_dim=16, window=9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_runs_from_drawing_to_the_table(tmp_path):
    tried = [(16, 4, 1, 1.0), (32, 4, 1, 4.0)]
    results = bench.run(shapes=[SMALL], device="cpu", rounds=2, tried=tried, command="a command")
    (shape,) = results["shapes"]
    assert [row["shape"] for row in shape["search"]] == [list(numbers) for numbers in tried]
    assert shape["best"] in [list(numbers) for numbers in tried]
    assert shape["bytes"] == 4 * 2 * 16 * (2 * 3 + 2 * 70 + 2 * 2 * 9)
    rows = {row["name"]: row for row in shape["rows"]}
    assert rows[bench.TWO_CALLS]["ratio"] == 1 and len(rows[bench.OURS]["microseconds"]) == 2
    assert all(row["error"] < 1e-4 for row in rows.values())
    written = bench.save(results, tmp_path / "decode.json")
    assert json.loads(written[0].read_text())["shapes"] == results["shapes"]
    text = written[1].read_text()
    assert "a command" in text and str(SMALL) in text and "(16, 2, DecodeShape(" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_wrong_result_ends_it(monkeypatch):
    monkeypatch.setattr(bench, "two_calls", lambda shape, inputs: lambda: inputs.q * 0)
    with pytest.raises(WrongResult, match="two SDPA calls is wrong"):
        bench.run(shapes=[SMALL], device="cpu", rounds=1, tried=[(32, 4, 1, 1.0)])


def test_goals_are_those_of_the_seven_shapes():
    def measured(shape, ratio):
        row = {"name": bench.OURS, "microseconds": [8.0], "ratio": ratio, "limits": 2.0}
        about = {"head_dim": 64, "slots": 1, "bytes": 20e6, "limit_microseconds": 4.0, "best": [64, 4, 2, 1.0]}
        return {"shape": str(shape), "rows": [row], **about}

    results = {"shapes": [measured(bench.SHAPES[0], 0.55), measured(bench.SHAPES[-1], 0.9)]}
    assert "every shape: 0.55 (goal <= 0.6: yes)" in bench.table(results)


def test_each_kernel_of_the_search_is_compiled_once():
    from longshort.ops.decode.launch import joined_at_a_time

    shapes = [Shape(batch=b, heads=4, length=32768, head_dim=64, window=128) for b in (1, 8)]
    found = decode_candidates.distinct(shapes, processors=132)
    sizes = {numbers[:3] + numbers[4:] for numbers in decode_candidates.candidates(64)}
    assert joined_at_a_time(64) == 64 and {numbers[:3] + numbers[4:] for _, numbers in found} == sizes
    assert len(found) == 2 * len(sizes)  # few parts, joined at once, and many
    assert all(len(decode_candidates.candidates(dim)) <= 44 for dim in (16, 32, 64, 96, 128, 256))


def test_a_step_can_be_taken_again_and_gives_the_same():
    step = bench.our_step(SMALL, bench.draw(SMALL, "cpu", 0))
    if not torch.cuda.is_available():
        assert torch.equal(step(), step())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so(tmp_path):
    with pytest.raises(SystemExit, match="needs a GPU"):
        bench.main(["--out", str(tmp_path / "x.json")])
    with pytest.raises(SystemExit, match="shapes must be numbers from 0 to 8"):
        bench.main(["--out", str(tmp_path / "x.json"), "--shapes", "9"])
