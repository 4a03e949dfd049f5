"""The cost of the statistics is the ratio of a step with them to one without."""

import pytest

from benchmarks.telemetry import CASES, measure


@pytest.mark.parametrize("name", CASES)
def test_overhead_is_the_ratio_spread_over_the_steps_between_readings(name):
    row = measure(CASES[name], device="cpu", rounds=1, every=10)
    assert row["milliseconds"] > 0
    assert row["overhead_at_default"] == pytest.approx((row["ratio"] - 1) / 10)
