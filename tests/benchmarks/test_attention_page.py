"""What the rows of the GPU benchmark say: ratios, goals and the table."""

import json

import pytest

from benchmarks.attention_page import gpu_tables, summarize
from benchmarks.harness import OURS
from benchmarks.peers import CUDNN, FA2, FLEX, OURS_WITH_STATS, TWO_CALLS
from benchmarks.shapes import Shape

TINY = Shape(batch=1, heads=2, length=48, head_dim=8, window=8)
LONG = Shape(batch=1, heads=32, length=32768, head_dim=128, window=128)


def made_up(shape, *, flex=1.0, calls=1.0, stats=1.0, cudnn=10.0, share=0.6):
    """Rows of one shape, ours at 1 ms in three rounds of which one is disturbed."""
    times = {
        (OURS, "ls"): 1.0,
        (OURS_WITH_STATS, "ls"): stats,
        (FLEX, "ls"): flex,
        (TWO_CALLS, "ls"): calls,
        (OURS, "local"): 0.5,
        (FA2, "local"): 0.7,
        (CUDNN, "full"): cudnn,
        (FA2, "full"): 2 * cudnn,
        (CUDNN, "global"): 0.3,
    }
    rows = [
        {"shape": str(shape), "name": name, "work": work, "direction": direction, "timing": "graph"}
        | {"milliseconds": [ms, 3 * ms, ms]}
        for direction in ("forward", "backward")
        for (name, work), ms in times.items()
    ]
    local = [row for row in rows if (row["work"], row["direction"]) == ("local", "forward")]
    for row in local:
        row["copy_share"] = share
    return rows


def goals(rows):
    return {goal["goal"]: goal["reached"] for goal in summarize(rows)["goals"]}


def test_ratios_are_medians_of_the_rounds_and_means_are_geometric():
    rows = made_up(TINY, flex=2.0) + made_up(LONG, flex=8.0)
    rows[0]["milliseconds"] = [1.0, 1.0, 1.0]  # ours, forward: the disturbed round is only theirs
    ratios = summarize(rows)["ratios"][FLEX]["forward"]
    assert ratios["by_shape"] == {str(TINY): pytest.approx(0.5), str(LONG): pytest.approx(0.125)}
    assert ratios["geometric_mean"] == pytest.approx(0.25)


def test_summary_holds_speedup_share_and_cost_by_shape():
    summary = summarize(made_up(LONG, cudnn=16.0, stats=1.01, share=0.4))
    assert summary["mhsa_speedup"] == {str(LONG): pytest.approx(16.0)}
    assert summary["copy_share"] == {str(LONG): 0.4}
    assert summary["statistics_cost"] == {str(LONG): pytest.approx(0.01)}


def test_goals_are_reached_or_not():
    good = goals(made_up(LONG, flex=2.0, calls=2.0, cudnn=15.0, stats=1.015, share=0.5))
    assert good.pop("forward + backward, times faster than cuDNN (full), T8192 D64") is None  # not measured
    assert set(good.values()) == {True}
    poor = goals(made_up(LONG, flex=1.0, calls=1.9, cudnn=14.9, stats=1.03, share=0.49))
    assert poor.pop("forward + backward, times faster than cuDNN (full), T8192 D64") is None
    assert set(poor.values()) == {False}


def test_one_slow_shape_misses_the_goal_for_every_shape_but_not_that_of_the_mean():
    reached = goals(made_up(TINY, flex=0.9) + made_up(LONG, flex=4.0))
    assert reached["forward / FlexAttention, every shape"] is False
    assert reached["forward / FlexAttention, geometric mean"] is True


def test_what_failed_enters_no_ratio():
    rows = [row for row in made_up(TINY) if (row["name"], row["direction"]) != (FLEX, "backward")]
    gone = {"shape": str(TINY), "name": FLEX, "work": "ls", "direction": "backward", "failed": "OutOfMemoryError"}
    rows.append(gone)
    summary = summarize(rows)
    assert summary["ratios"][FLEX]["backward"] == {"by_shape": {}, "geometric_mean": None}
    json.dumps(summary, allow_nan=False)
    page = gpu_tables({"rows": rows, "summary": summary})
    assert "1000 / failed" in page and "not measured" in page


def test_the_table_has_microseconds_and_marks_what_was_not_captured():
    rows = made_up(TINY, flex=0.125)
    next(row for row in rows if row["name"] == FLEX)["timing"] = "events"
    page = gpu_tables({"rows": rows, "summary": summarize(rows)})
    assert "| 125* / 125 |" in page and "| 1000 / 1000 |" in page
