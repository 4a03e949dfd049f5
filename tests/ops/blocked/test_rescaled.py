"""Decay by rescaled queries and keys: the same as the reference to the last digits, and used wherever it can be."""

import itertools

import pytest
import torch

from longshort import HeadPlan, attention
from longshort.ops.blocked import rescaled
from longshort.ops.blocked.groups import SPREAD

from ..cases import small_tiles

PADDED = [[0] * 60 + [-1] * 4, [0] * 64]
MIXED = [[0, 1] * 32, [0] * 20 + [1] * 20 + [0] * 24]  # ids that come again, so that rows see keys here and there
ALONE = [list(range(64)), [0] * 63 + [1]]  # rows with no key after them


def results(plan, backend, *, past=0, segments=None, dtype=torch.float64, causal=True, size=1.0):
    generator = torch.Generator().manual_seed(0)
    queries = 64 - past
    shapes = ((2, plan.n_heads, queries, 8), (2, plan.n_heads, 64, 8), (2, plan.n_heads, 64, 8))
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes)
    with torch.no_grad():
        q.mul_(size), k.mul_(size)
    ids = None if segments is None else torch.tensor(segments)
    found = attention(q, k, v, plan, causal=causal, segments=ids, backend=backend)
    weights = torch.randn(found.out.shape, generator=generator, dtype=torch.float64).to(dtype)
    found.out.backward(weights)
    return found.out.detach(), found.lse, q.grad, k.grad, v.grad


@pytest.mark.parametrize(
    ("causal", "past", "segments"), list(itertools.product([True, False], [0, 13], [None, PADDED, MIXED, ALONE]))
)
def test_rescaled_rows_are_those_of_the_reference(causal, past, segments, engines):
    plan = HeadPlan(windows=(None, None, 1, 2, 9), decays=(0.0, 0.3, 0.5, 0.1, 1.2))
    options = {"causal": causal, "past": past, "segments": segments}
    for ours, theirs in zip(results(plan, "blocked", **options), results(plan, "reference", **options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    assert "_rescaled_forward" in engines and "_dense_forward" not in engines


@pytest.mark.parametrize("causal", [True, False])
def test_at_the_largest_spread_fp32_keeps_its_digits(causal, engines):
    plan = HeadPlan(windows=(None, 20), decays=(SPREAD / 64, SPREAD / 64))
    exact = results(plan, "reference", causal=causal)
    for ours, theirs in zip(results(plan, "blocked", causal=causal, dtype=torch.float32), exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-6 * float(theirs.abs().max()))
    assert "_dense_forward" not in engines


@pytest.mark.parametrize(
    ("causal", "segments", "slope"), list(itertools.product([True, False], [None, MIXED], [0.0, 0.01]))
)
@pytest.mark.parametrize("window", [None, 50, 63])
def test_large_logits_of_hidden_keys_reach_nothing(causal, segments, slope, window, engines):
    plan = HeadPlan(windows=(window,), decays=(SPREAD / 64,), slopes=(slope,))
    options = {"causal": causal, "segments": segments, "dtype": torch.float32, "size": 300.0}
    for ours, theirs in zip(results(plan, "blocked", **options), results(plan, "reference", **options), strict=True):
        # fp32 keeps logits of 10^5 to about 1e-2 (by machine, more or less), and a softmax hands that on.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-1 * max(1.0, float(theirs.abs().max())))
    assert "_dense_forward" not in engines


def test_half_precision_is_computed_in_single(engines):
    plan = HeadPlan.las(2, 0.1)
    half = results(plan, "blocked", dtype=torch.bfloat16, causal=False)
    spelled = results(plan, "reference", dtype=torch.bfloat16, causal=False)
    assert half[0].dtype == torch.bfloat16 and half[1].dtype == torch.float32
    torch.testing.assert_close(half[1], spelled[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(half[0], spelled[0], rtol=1e-2, atol=1e-2)
    assert "_rescaled_forward" in engines


def test_only_heads_that_decay_further_are_spelled_out(engines):
    plan = HeadPlan(windows=(None,) * 3, decays=(0.01, 1.01 * SPREAD / 64, 0.99 * SPREAD / 64))
    for ours, theirs in zip(results(plan, "blocked"), results(plan, "reference"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert sorted(name for name in engines if name != "_fused_forward") == ["_dense_forward", "_rescaled_forward"]


@pytest.mark.parametrize(("causal", "past", "segments"), list(itertools.product([True, False], [0, 13], [None, MIXED])))
def test_slopes_go_with_it(causal, past, segments, engines):
    plan = HeadPlan(windows=(None, None, 9), decays=(0.1, 0.2, 0.1), slopes=(0.2, 0.0, 1.5))
    options = {"causal": causal, "past": past, "segments": segments}
    with small_tiles(2):
        found = results(plan, "blocked", **options)
    for ours, theirs in zip(found, results(plan, "reference", **options), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    assert "_rescaled_forward" in engines and "_dense_forward" not in engines


def test_a_plan_without_decay_is_never_rescaled(monkeypatch):
    monkeypatch.setattr(rescaled, "sides", lambda group: pytest.fail("rescaled"))
    results(HeadPlan.long_short(2, 1, 5), "blocked", causal=False)
