"""The best window and the power law through them."""

import math

import pytest

from experiments.window_rule import best_window, fit_window


def test_a_parabola_in_the_log_of_the_window_is_met_exactly():
    losses = {w: 3.0 + 0.1 * (math.log2(w) - math.log2(60)) ** 2 for w in (8, 16, 32, 50, 100, 200)}
    best = best_window(losses)
    assert best.window == pytest.approx(60, rel=1e-6) and not best.at_edge


def test_a_lowest_loss_at_the_edge_is_marked():
    assert best_window({8: 3.0, 16: 3.1, 32: 3.2}) == (8.0, 3.0, True)


def test_losses_that_are_not_finite_are_left_out():
    assert best_window({8: None, 16: 3.1, 32: math.nan, 64: 3.0}) is None


def test_a_power_law_of_length_and_width_is_found():
    points = [(n, d, 0.5 * n**0.4 * d**0.3) for n in (512, 2048, 8192) for d in (96, 192)]
    rule = fit_window(points)
    assert (rule.scale, rule.by_length, rule.by_width) == pytest.approx((0.5, 0.4, 0.3))
    assert rule.error == pytest.approx(0, abs=1e-9) and rule.points == 6
    assert rule(4096, 192) == pytest.approx(0.5 * 4096**0.4 * 192**0.3)


def test_one_width_leaves_its_exponent_at_zero_and_one_length_leaves_no_rule():
    assert fit_window([(512, 192, 20), (2048, 192, 40)]).by_width == 0
    assert fit_window([(512, 192, 20), (512, 96, 10)]) is None
