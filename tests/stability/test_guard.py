"""The spike guard: what it flags, what it remembers."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longshort.stability import SpikeGuard


def calm(guard, steps=50, level=2.0):
    for step in range(steps):
        assert not guard.judge(level + 0.01 * (step % 5)).spike
    return guard


def test_a_loss_far_above_the_median_is_a_spike():
    verdict = calm(SpikeGuard(warmup=10)).judge(9.0)
    assert verdict.spike
    assert "9" in verdict.reason and f"{verdict.threshold:.4g}" in verdict.reason


def test_the_limit_is_the_median_plus_threshold_robust_deviations():
    guard = SpikeGuard(warmup=5, threshold=4.0)
    for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
        guard.judge(loss)
    limit = 3.0 + 4.0 * 1.4826 * 1.0
    assert guard.judge(limit + 1e-6).spike
    assert guard.judge(3.0).threshold == pytest.approx(limit)


def test_a_sudden_improvement_is_no_spike():
    assert not calm(SpikeGuard(warmup=10)).judge(0.1).spike


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_spike_from_the_first_step_on(loss):
    verdict = SpikeGuard().judge(loss)
    assert verdict.spike
    assert str(loss) in verdict.reason


def test_what_is_not_finite_stays_a_spike_however_often_it_comes():
    guard = calm(SpikeGuard(warmup=10, cap=3))
    assert all(guard.judge(math.nan).spike for _ in range(20))


def test_nothing_finite_is_a_spike_before_the_warm_up_is_over():
    guard = SpikeGuard(warmup=10)
    assert not any(guard.judge(loss).spike for loss in (1.0, 500.0, 2.0, 1e6, 3.0))
    assert guard.judge(1.0).threshold is None


def test_spikes_never_enter_the_window_they_are_judged_by():
    guard = calm(SpikeGuard(window=50, warmup=10, cap=1000))
    before = guard.judge(2.0).threshold
    for loss in [9.0, math.nan, 50.0, math.inf] * 25:
        assert guard.judge(loss).spike
    assert guard.judge(2.0).threshold == pytest.approx(before, rel=1e-3)
    assert max(guard.accepted) < 3 and all(math.isfinite(loss) for loss in guard.accepted)


def test_a_level_that_persists_is_accepted_after_cap_spikes_in_a_row():
    guard = calm(SpikeGuard(warmup=10, cap=4))
    verdicts = [guard.judge(5.0).spike for _ in range(8)]
    assert verdicts == [True] * 4 + [False] * 4


def test_after_a_level_shift_the_guard_judges_by_the_new_level():
    guard = calm(SpikeGuard(warmup=10, cap=4))
    for step in range(4 + 20):
        guard.judge(5.0 + 0.01 * (step % 3))
    assert guard.judge(9.0).spike
    assert not guard.judge(5.02).spike


def test_a_good_step_between_two_spikes_starts_the_count_again():
    guard = calm(SpikeGuard(warmup=10, cap=2))
    verdicts = [guard.judge(loss).spike for loss in (9.0, 9.0, 2.0, 9.0, 9.0, 9.0)]
    assert verdicts == [True, True, False, True, True, False]


def test_what_the_device_finds_is_what_the_host_will():
    guard, losses = SpikeGuard(window=20, threshold=6.0, warmup=10, cap=3), [2.0 + 0.01 * (n % 5) for n in range(20)]
    found = []
    for loss in [*losses, 9.0, math.nan, 2.0, *[9.0] * 5, math.inf]:
        on_device = bool(guard.spikes(torch.tensor(loss)))
        assert on_device is guard.judge(loss).spike
        found.append(on_device)
    assert found[20:] == [True, True, False, True, True, True, False, False, True]


def test_a_loss_next_to_the_limit_is_judged_alike_on_the_device():
    for level in range(1, 20):
        guard = calm(SpikeGuard(window=50, threshold=8.0, warmup=10), level=0.1 * level)
        loss = torch.tensor(guard.judge(0.1 * level).threshold)  # in fp32 above the limit, below it, or equal to it
        assert bool(guard.spikes(loss)) is guard.judge(loss.item()).spike


def test_it_forgets_what_is_older_than_its_window():
    guard = calm(SpikeGuard(window=20, warmup=10, threshold=200.0), level=4.0)
    for _ in range(20):
        guard.judge(2.0)
    assert set(guard.accepted) == {2.0}


def test_a_restored_guard_judges_as_the_one_that_was_saved():
    guard = calm(SpikeGuard(window=30, warmup=10, cap=3))
    guard.judge(9.0)
    restored = SpikeGuard(window=30, warmup=10, cap=3)
    restored.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    for loss in (9.0, 9.0, 9.0, 2.0, math.nan, 9.1, *[3.0] * 40):
        assert restored.judge(loss) == guard.judge(loss)
    assert len(restored.accepted) == len(guard.accepted) == 30


def test_what_is_not_finite_counts_among_the_spikes_in_a_row():
    guard = calm(SpikeGuard(window=50, warmup=10, cap=3))
    assert [guard.judge(loss).spike for loss in (math.nan, 9.0, math.inf, 9.0)] == [True, True, True, False]


def test_a_level_below_zero_is_no_spike():
    guard = SpikeGuard(warmup=10, threshold=8.0)
    assert not any(guard.judge(-2.0).spike for _ in range(30))
    assert guard.judge(-2.0).threshold == pytest.approx(-2.0 + 8 * 0.002)


@given(
    level=st.floats(0.1, 20),
    relative_noise=st.floats(0, 0.05),
    draws=st.lists(st.floats(-1, 1), min_size=60, max_size=150),
)
def test_a_constant_level_with_even_noise_is_never_flagged(level, relative_noise, draws):
    # Fill the window with the whole width of the noise first: the median deviation is then half of it.
    guard = SpikeGuard(window=200, warmup=50)
    for step in range(50):
        guard.judge(level * (1 + relative_noise * (step % 11 - 5) / 5))
    assert not any(guard.judge(level * (1 + relative_noise * draw)).spike for draw in draws)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"window": 1}, "window"),
        ({"warmup": 1}, "warmup"),
        ({"cap": 0}, "cap"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
        ({"window": 20, "warmup": 50}, "warmup must be at most window=20"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        SpikeGuard(**settings)
