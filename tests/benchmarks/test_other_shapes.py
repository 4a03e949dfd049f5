"""Other shapes and plans: grouped heads are measured, and a plan is compared with one of as many pairs."""

from dataclasses import replace

import pytest

from benchmarks import attention, other_shapes
from benchmarks.harness import OURS, Recorder
from benchmarks.other_shapes import PLAN_SHAPE, PLANS, Layers, goals, measure_plan, tables
from benchmarks.peers import FLEX
from benchmarks.shapes import OTHER_SHAPES, Shape
from longshort import HeadPlan

SHAPE = Shape(batch=1, heads=4, kv_heads=2, length=64, head_dim=8, window=8, n_global=2)
LAYERS = Layers(name="mixed", plans=(HeadPlan.full(4), HeadPlan(windows=(4, 4, 8, 8))))


@pytest.mark.parametrize("layers", PLANS, ids=lambda layers: layers.name)
def test_the_uniform_plan_has_as_many_pairs(layers):
    length = PLAN_SHAPE.length
    uniform = Layers(name="", plans=(layers.uniform(length),))
    assert uniform.pairs(length) == pytest.approx(layers.pairs(length) / len(layers.plans), rel=0.01)
    assert len(set(uniform.plans[0].windows)) == 1


def test_pairs_are_those_that_the_masks_show():
    seen = sum(min(t + 1, window or 5) for window in (None, 2, 9) for t in range(5))
    assert Layers(name="", plans=(HeadPlan(windows=(None, 2, 9)),)).pairs(5) == seen


def test_the_ratio_is_that_of_the_times_per_pair_averaged_over_the_layers(monkeypatch):
    times = {LAYERS.plans[0]: 5.0, LAYERS.plans[1]: 1.0, LAYERS.uniform(64): 1.5}
    monkeypatch.setattr(other_shapes, "timer", lambda attend, *a: ((lambda: times[attend.keywords["plan"]]), "made up"))
    rows = measure_plan(LAYERS, replace(SHAPE, kv_heads=None), device="cpu", rounds=2, backend="blocked")
    uniform = Layers(name="", plans=(LAYERS.uniform(64),)).pairs(64)
    assert [row["direction"] for row in rows] == ["forward", "forward+backward"]
    assert rows[0]["milliseconds"] == [3.0, 3.0]
    assert rows[0]["ratio"] == pytest.approx(3.0 / 1.5 * uniform / (LAYERS.pairs(64) / 2))


def test_grouped_heads_and_plans_are_measured_and_judged(tmp_path):
    out = tmp_path / "other-shapes.json"
    results = other_shapes.run(
        Recorder(out),
        device="cpu",
        shapes=[SHAPE],
        plans=[LAYERS],
        plan_shape=replace(SHAPE, kv_heads=None),
        rounds=1,
        backend="blocked",
    )
    ours = [row for row in results["rows"] if row["name"] == OURS]
    assert [row["shape"] for row in ours] == ["B1 H4/2 T64 D8 g2 w8"] * 2 and all(row["milliseconds"] for row in ours)
    assert len(results["plans"]) == 2 and tables(results) in out.with_suffix(".md").read_text()


def test_a_row_of_key_heads_is_drawn_for_each_group():
    q, k, v, gradient = attention.draw(SHAPE, "ls", "cpu")
    assert (q.shape, k.shape, v.shape) == ((1, 4, 64, 8), (1, 2, 64, 8), (1, 2, 64, 8)) and gradient.shape == q.shape


def test_goals_take_the_worst():
    rows = [
        {"shape": shape, "direction": "forward", "name": name, "milliseconds": [ms]}
        for shape, name, ms in (
            ("a", OURS, 1.0),
            ("a", FLEX, 2.0),
            ("b", OURS, 3.0),
            ("b", FLEX, 4.0),
            ("c", OURS, 9.0),
        )
    ]
    found = goals({"rows": rows, "plans": [{"ratio": 1.2}, {"ratio": 1.4}]})
    assert [(goal["value"], goal["reached"]) for goal in found] == [(0.75, True), (1.4, False)]
    assert [goal["reached"] for goal in goals({})] == [None, None]


def test_goals_are_not_reached_before_everything_is_measured():
    partial = [goals({"plans": [{"ratio": ratio}], "unfinished": []})[1] for ratio in (1.2, 1.4)]
    assert [goal["reached"] for goal in partial] == [None, False] and "so far" in partial[0]["goal"]


def test_other_shapes_cover_what_was_not_tuned():
    assert {8, 1024} <= {shape.window for shape in OTHER_SHAPES}
    assert {3000, 65536} <= {shape.length for shape in OTHER_SHAPES} and 96 in {
        shape.head_dim for shape in OTHER_SHAPES
    }
    assert {2, 4, 8} <= {shape.n_global for shape in OTHER_SHAPES}
    assert all(shape.n_global % (shape.heads // shape.kv_heads) == 0 for shape in OTHER_SHAPES if shape.kv_heads)
