"""The benchmarks on a GPU, at sizes that say nothing about speed: every implementation runs, is right and is timed."""

import pytest

from benchmarks import gpu, gpu_report, training
from benchmarks.registry import Shape

pytestmark = pytest.mark.filterwarnings("default")  # what peers and compilers warn of is not ours

SMALL = Shape(batch=2, heads=4, length=512, head_dim=64, window=64)


def test_every_implementation_runs_is_right_and_forward_is_captured():
    results = gpu.run(shapes=[SMALL], rounds=1)
    assert [row for row in results["rows"] if "failed" in row] == []
    assert {row["timing"] for row in results["rows"] if row["direction"] == "forward"} == {"graph"}
    assert results["copy_bandwidth"] > 1e11
    memory = next(row["memory"] for row in results["rows"] if row["memory"])
    assert memory["peak"] >= memory["results"] > 0
    assert str(SMALL) in gpu_report.table(results)


@pytest.mark.parametrize("compiled", [False, True])
def test_every_arm_trains(compiled):
    setting = training.Setting(preset="paper-6m", context=512, tokens=1024, overrides={"n_layers": 2})
    rows = training.measure(setting, compiled=compiled, rounds=1, steps=1)
    assert [row for row in rows if "failed" in row] == []
    assert all(row["tokens_per_second"] > 0 for row in rows)
