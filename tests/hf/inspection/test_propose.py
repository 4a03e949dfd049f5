"""Plans within a budget: the costs fit, and windows go where the attention is."""

import pytest
import torch

from longshort import HeadPlan
from longshort.hf.inspection.measure import FIRST, Measured
from longshort.hf.inspection.propose import Budget, candidates, plan_costs

LENGTH = 256


def measured(reaches, plans=None, sinks=0.0, n_kv_heads=None):
    """Heads whose attention is spread evenly over so many keys, apart from a share on the first."""
    layers, heads = len(reaches), len(reaches[0])
    mass = torch.zeros(layers, heads, LENGTH, dtype=torch.float64)
    for layer, row in enumerate(reaches):
        for head, reach in enumerate(row):
            mass[layer, head, :reach] = (1 - sinks) / reach
    first = torch.zeros_like(mass)
    first[..., -1] = sinks
    nothing = torch.zeros(layers, heads, dtype=torch.float64)
    return Measured(
        mass=mass,
        first_mass=first,
        learned_sink=nothing,
        entropy=nothing,
        largest_logit=nothing,
        plans=plans or (HeadPlan.full(heads),) * layers,
        n_kv_heads=n_kv_heads or heads,
        head_dim=8,
    )


@pytest.mark.parametrize("budget", ["0.1", "0.35", "0.8", "cache_bytes=100", "share=0.5,cache_bytes=60"])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_every_candidate_is_within_the_budget(budget, n_kv_heads):
    found = measured([(4, 30, 100, 256), (256, 9, 9, 200), (3, 3, 3, 3)], n_kv_heads=n_kv_heads)
    budget = Budget.parse(budget)
    made = candidates(found, budget)
    assert "even" in {candidate.way for candidate in made}
    least = min(c.lost for c in made if c.way != "pattern" and not c.first)
    assert all(c.lost > least - 1e-9 for c in made if c.way == "even" and not c.first)
    for candidate in made:
        own = plan_costs(candidate.plans, found, 2)
        assert own == candidate.costs and budget.allows(own)
        groups = [plan.kv_windows(n_kv_heads) for plan in candidate.plans]
        size = 4 // n_kv_heads
        assert all(
            plan.windows[h] == row[h // size]
            for plan, row in zip(candidate.plans, groups, strict=True)
            for h in range(4)
        )


def test_the_heads_that_look_far_get_the_wide_windows():
    found = measured([(4, 256, 30, 4), (8, 8, 250, 8)])
    (plans,) = [c.plans for c in candidates(found, Budget.parse("0.35")) if c.way != "pattern" and not c.first]
    assert [plan.windows for plan in plans] == [(8, None, 32, 8), (8, 8, None, 8)]  # whichever way, nothing is lost


def test_the_two_ways_spend_too_small_a_budget_differently():
    found = measured([(256, 256, 16, 16)])
    even, total = (c.plans[0].windows for c in candidates(found, Budget.parse("0.4")) if not c.first)
    assert (total, even) == ((None, 32, 16, 16), (128, 64, 16, 16))


def test_a_budget_of_cache_is_spent_by_what_a_cache_holds():
    """A query sees few more keys in the last half of a sequence, but a cache holds all of them."""
    found = measured([(1,) * 5])
    found.mass[:] = 0
    found.mass[0, 0, 100], found.mass[0, 0, 200] = 0.8, 0.2
    found.mass[0, 1:, 50], found.mass[0, 1:, 100] = 0.85, 0.15
    bytes_per_key = 2 * 8 * 2 / LENGTH
    made = candidates(found, Budget(cache_bytes=bytes_per_key * (128 + 4 * 64 + 4 * 64)), firsts=(0,))
    (total,) = [c for c in made if c.plans[0].windows == (128,) * 5]
    assert total.lost == pytest.approx(0.2 / 5)


def test_first_keys_are_seen_where_they_hold_the_attention():
    found = measured([(8, 8, 8, 8)], sinks=0.5)
    made = candidates(found, Budget.parse("0.15"))
    lost = {c.first: c.lost for c in made if c.way == "even"}
    assert lost[FIRST] == pytest.approx(0) and lost[0] == pytest.approx(0.5)
    (with_first,) = [c for c in made if c.first]
    assert with_first.plans[0].firsts == (FIRST,) * 4
    assert not any(c.first for c in candidates(found, Budget.parse("0.15"), firsts=(0,)))


def test_windows_that_a_model_has_are_not_widened():
    own = (HeadPlan(windows=(16, 16, 40, None)),) * 2
    found = measured([(16, 16, 40, 256)] * 2, plans=own)
    for share in (0.15, 0.3, 1.0):
        for candidate in candidates(found, Budget(share=share)):
            for plan in candidate.plans:
                assert all(
                    w is None or (v is not None and v <= w) for v, w in zip(plan.windows, own[0].windows, strict=True)
                )
    assert candidates(found, Budget(share=1.0))[0].plans == own


def test_a_budget_below_the_narrowest_windows_says_what_they_take():
    with pytest.raises(ValueError, match=r"windows of 8 keys, which take 6\.\d% .* got share=0.01"):
        candidates(measured([(4, 4)]), Budget(share=0.01))


@pytest.mark.parametrize("text", ["", "x", "share", "share=", "2=3", "0.5,0.5", "cache=3", "0", "2", "nan", "share=-1"])
def test_a_budget_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"--budget must be|share must be a number above 0"):
        Budget.parse(text)
