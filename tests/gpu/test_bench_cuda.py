"""The benchmarks on a GPU, at sizes that say nothing about speed: every implementation runs, is right and is timed."""

from dataclasses import replace

import pytest

from benchmarks import attention, attention_page, decode_step, plans, training
from benchmarks.harness import Recorder
from benchmarks.shapes import Shape
from longshort import GPTConfig

pytestmark = pytest.mark.filterwarnings("default")  # what peers and compilers warn of is not ours

SMALL = Shape(batch=2, heads=4, length=512, head_dim=64, window=64)


def test_every_implementation_runs_is_right_and_forward_is_captured():
    results = attention.run(Recorder(), shapes=[SMALL], device="cuda", rounds=1)
    assert [row for row in results["rows"] if "failed" in row] == []
    assert {row["timing"] for row in results["rows"] if row["direction"] == "forward"} == {"graph"}
    assert results["copy_bandwidth"] > 1e11
    memory = next(row["memory"] for row in results["rows"] if row.get("memory"))
    assert memory["peak"] >= memory["results"] > 0
    assert str(SMALL) in attention_page.gpu_tables(results)


def test_inputs_lie_in_memory_as_a_projection_leaves_them():
    q = attention.draw(SMALL, "ls", "cuda")[0]
    assert q.shape == (2, 4, 512, 64) and q.transpose(1, 2).is_contiguous() and not q._is_view()


def test_a_decoding_step_is_captured_with_every_tile():
    tried = [(32, 4, 4, 1.0), (64, 4, 3, 1.0)]
    (shape,) = decode_step.run(Recorder(), shapes=[SMALL], rounds=1, tried=tried)["shapes"]
    assert [row for row in shape["search"] if row["failed"]] == []
    assert {row["timing"] for row in shape["rows"]} == {"graph"}


def test_every_way_of_training_runs_and_is_right():
    sizes = replace(training.SIZES["cpu"], compiler="inductor")
    results = training.run(Recorder(), device="cuda", parts=["step", "vocabulary", "small"], sizes=sizes, rounds=1)
    rows = [row for part in ("step", "vocabulary", "small") for row in results[part]]
    assert len(rows) > 6 and [row for row in rows if "failed" in row] == []
    assert all(row["peak_bytes"] > 0 for row in results["step"])


def test_plans_are_trained_compiled_and_decoded_from_a_graph():
    reaches = {"full": "full", "mixed": {"pattern": "interleave", "layers": "LG", "window": 64, "sinks": True}}
    models = {name: GPTConfig.preset("modern-10m", n_layers=2, reach=reach) for name, reach in reaches.items()}
    timing = {"device": "cuda", "rounds": 2, "steps": 2}
    trained = plans.training(models, 512, tokens=1024, **timing)
    decoded = plans.decoding(models, 600, batch=2, **timing)
    assert [row for row in (*trained, *decoded) if "failed" in row] == []
    assert all(row["peak_bytes"] > 0 for row in trained) and {row["mode"] for row in decoded} == {"CUDA graph"}
