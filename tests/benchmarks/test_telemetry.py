"""What the logit statistics cost is counted as it is said to be."""

import pytest

from benchmarks import telemetry


@pytest.mark.parametrize("name", telemetry.PLANS)
def test_overhead_of_statistics_is_the_ratio_spread_over_the_steps_between_readings(name):
    row = telemetry.statistics_cost(telemetry.PLANS[name], device="cpu", rounds=1, every=10)
    assert row["milliseconds"] > 0
    assert row["overhead_at_default"] == pytest.approx((row["ratio"] - 1) / 10)
