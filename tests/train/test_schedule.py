"""Learning rates: endpoints, warm-up, direction."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.train.schedule import learning_rate
from longshort.train.settings.config import ScheduleConfig


def rates(steps, *, peak=2.0, **settings):
    schedule = ScheduleConfig(**settings)
    return [learning_rate(step, peak=peak, steps=steps, schedule=schedule) for step in range(steps)]


@pytest.mark.parametrize("kind", ["constant", "cosine", "wsd"])
def test_the_warm_up_rises_in_even_steps_from_above_zero_to_the_peak(kind):
    assert rates(100, kind=kind, warmup=4)[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])


def test_constant_stays_at_the_peak():
    assert rates(50, kind="constant", warmup=10)[9:] == [2.0] * 41


@pytest.mark.parametrize("kind", ["constant", "cosine", "wsd"])
def test_without_warm_up_the_first_step_has_the_peak(kind):
    assert rates(50, kind=kind, warmup=0)[0] == pytest.approx(2.0)


@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_the_last_step_has_the_floor(kind, floor):
    assert rates(100, kind=kind, warmup=10, floor=floor)[-1] == pytest.approx(2.0 * floor)


def test_cosine_is_half_way_down_in_the_middle():
    assert rates(101, kind="cosine", warmup=0, floor=0.2)[50] == pytest.approx(2.0 * (0.2 + 0.8 * 0.5))


def test_wsd_is_stable_until_its_last_share_and_then_falls_in_even_steps():
    found = rates(100, kind="wsd", warmup=10, decay=0.2, floor=0.0)
    assert found[10:80] == pytest.approx([2.0] * 70)
    falls = [a - b for a, b in itertools.pairwise(found[79:])]
    assert falls == pytest.approx([0.1] * 20)


def test_wsd_without_a_decay_falls_in_its_last_step():
    assert rates(5, kind="wsd", warmup=0, decay=0.0, floor=0.5) == [2.0] * 4 + [1.0]


@given(
    kind=st.sampled_from(["constant", "cosine", "wsd"]),
    steps=st.integers(1, 300),
    warmup=st.integers(0, 100),
    floor=st.floats(0, 1),
    decay=st.floats(0, 1),
)
def test_the_rate_rises_through_the_warm_up_then_never_again_and_stays_in_bounds(kind, steps, warmup, floor, decay):
    found = rates(steps, peak=1.0, kind=kind, warmup=warmup, floor=floor, decay=decay)
    assert all(0 <= rate <= 1 + 1e-12 for rate in found)
    rising, falling = found[:warmup], found[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(rate >= floor - 1e-12 for rate in falling)


def test_a_run_shorter_than_its_warm_up_only_rises():
    assert rates(3, kind="cosine", warmup=10) == pytest.approx([0.2, 0.4, 0.6])
