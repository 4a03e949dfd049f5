"""What a reach costs, and the plan within a budget."""

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.engine import comparison
from experiments.engine.evidence import paired
from experiments.reach import OF_EIGHT
from longshort import HeadPlan, reach
from longshort.reach.budgets import EVIDENCE
from longshort.reach.costs import mean_visible

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def counted(layers, context):
    """Visible pairs of a causal model, one by one."""
    return sum(
        min(t + 1, context if window is None else window)
        for layer in layers
        for window in layer.plan.windows
        for t in range(context)
    )


@given(st.lists(st.none() | st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 30))
def test_costs_are_those_of_the_pairs_one_by_one(windows, context):
    layers = (reach.LayerReach(plan=HeadPlan(windows=tuple(windows))),) * 2
    found = reach.costs(layers, context=context, head_dim=4, value_bytes=2)
    assert found.visible_keys == pytest.approx(counted(layers, context) / context / len(windows) / 2)
    assert found.flops == pytest.approx(4 * 4 * counted(layers, context) / context)
    kept = sum(min(context, context if window is None else window) for window in windows)
    assert found.cache_bytes == pytest.approx(2 * 2 * 4 * 2 * kept / context)
    assert found.full_cache_bytes == 2 * 2 * 4 * 2 * len(windows)
    assert 0 < found.share <= 1
    assert 0 < found.cache_share <= 1


@given(st.none() | st.integers(1, 14), st.integers(1, 12), st.integers(0, 14), st.booleans())
def test_visible_keys_are_those_of_the_definition(window, length, first, causal):
    def sees(t, j):
        near = window is None or abs(t - j) < window or j < first
        return near and (j <= t or not causal)

    counted = sum(sees(t, j) for t in range(length) for j in range(length))
    assert mean_visible(window, length, first, causal=causal) == pytest.approx(counted / length)


def test_grouped_queries_share_a_cache():
    layers = reach.full(n_layers=3, n_heads=8, n_kv_heads=2)
    assert reach.costs(layers, context=64, n_kv_heads=2, head_dim=16).cache_bytes == 3 * 2 * 16 * 2 * 2


@pytest.mark.parametrize("n_kv_heads", [0, 3, True])
def test_no_cache_has_so_many_heads(n_kv_heads):
    with pytest.raises(ValueError, match=f"^n_kv_heads must be a divisor of the plan's 4 heads, got {n_kv_heads}"):
        reach.costs(reach.full(n_layers=2, n_heads=4), context=64, n_kv_heads=n_kv_heads)


def test_cache_grows_with_the_size_of_its_numbers():
    layers = reach.ladder(n_layers=2, n_heads=4)
    half, whole = (reach.costs(layers, context=64, value_bytes=size) for size in (2, 4))
    assert whole.cache_bytes == 2 * half.cache_bytes and whole.cache_share == half.cache_share


def test_full_attention_is_all_of_full_attention():
    for causal in (True, False):
        assert reach.costs(reach.full(n_layers=2, n_heads=4), context=64, causal=causal).share == 1


def rows_of(experiment):
    return {row["variant"]: row for row in json.loads((RESULTS / f"{experiment}.json").read_text())["rows"]}


def above_full(experiment):
    """The mean difference to full attention over the seeds of both."""
    rows = rows_of(experiment)
    return {name: comparison.difference(row, rows["full"]).mean for name, row in rows.items()}


@pytest.mark.parametrize("experiment", EVIDENCE)
def test_evidence_is_the_experiments(experiment):
    found = above_full(experiment)
    assert {name: round(found[name], 4) for name in EVIDENCE[experiment]} == EVIDENCE[experiment]
    seeds = {len(rows_of(experiment)[name]["seeds"]) for name in EVIDENCE[experiment]}
    assert seeds == ({3, 4} if experiment == "reach-modern" else {3})
    assert len(rows_of("reach-modern")["one-full-8"]["seeds"]) == 3


def test_what_the_reasons_say_is_in_the_experiments():
    older, modern = above_full("reach"), above_full("reach-modern")
    assert sorted(OF_EIGHT, key=older.__getitem__)[:2] == ["ladder", "one-full-8"]
    assert older["one-full-2"] > 0 and round(older["all-local-w64"], 3) == 0.116
    assert min(modern, key=modern.__getitem__) == "ladder-nope" and len(modern) == 19

    for experiment, of_full, of_last, gained in (("retrieval", 95, 46, 2), ("retrieval-modern", 99, 80, 2)):
        rows = rows_of(experiment)

        def right(plan, kind="variables", rows=rows, seeds=(0, 1, 2)):
            shares = dict(zip(rows[plan]["seeds"], rows[plan]["shares"][kind]["2048"], strict=True))
            return 100 * statistics.fmean(shares[seed] for seed in seeds)

        assert (round(right("full")), round(right("one-full-8"))) == (of_full, of_last)
        shared = rows["ls1-w64"]["seeds"]
        assert round(right("ls1-w64", seeds=shared) - right("full", seeds=shared)) == gained
        needles = [kind for kind in rows["full"]["shares"] if kind.startswith("needle")]
        assert all(right("ls1-w64", kind) > right("full", kind) - 2 for kind in needles)

    assert (round(right("full", seeds=[3])), round(right("one-full-8-nope", seeds=[3]))) == (92, 37)
    for kind in (*needles, "variables"):
        assert right("ls1-w64-nope", kind, seeds=[3]) > right("full", kind, seeds=[3]) - 2
        assert rows["ls1-w64-nope"]["seeds"] == rows["one-full-8-nope"]["seeds"] == [3]

    larger, asked = above_full("reach-30m"), rows_of("retrieval-30m")
    assert min(larger, key=larger.__getitem__) == "ladder-nope" and len(larger) == 5
    shares = [dict(enumerate(asked[name]["shares"]["variables"]["2048"])) for name in ("ls1-w128-nope", "full")]
    assert [round(100 * statistics.fmean(found.values())) for found in shares] == [89, 98]
    difference = paired(*shares)
    assert difference.seeds == 3 and difference.sign() == 0


def test_with_rotary_positions_global_heads_are_not_rotated():
    sizes = {"n_layers": 8, "n_heads": 8, "context": 2048, "rotary": True}
    ladder = reach.budget(**sizes, share=0.24)
    assert ladder.layers == reach.ladder(n_layers=8, n_heads=8, nope=True)
    assert "not rotated" in ladder.reason and "-0.0769" in ladder.reason and "-0.0383" in ladder.reason
    head_wise = reach.budget(**sizes, share=0.2)
    assert head_wise.layers == reach.long_short(1, 64, n_layers=8, n_heads=8, nope=True)
    assert "which is not rotated" in head_wise.reason and "-0.0641" in head_wise.reason
    assert "-0.0259" in head_wise.reason and "answered 89 % of chains" in head_wise.reason
    late = reach.budget(**sizes, n_kv_heads=1, share=0.2)
    assert late.layers == reach.interleave("LLLLLLLG", 64, n_layers=8, n_heads=8, n_kv_heads=1, nope=True)
    assert "whose heads are not rotated" in late.reason and "-0.0672" in late.reason
    with pytest.raises(ValueError, match="rotary must be True or False, got 'yes'"):
        reach.budget(n_layers=8, n_heads=8, context=2048, share=0.24, rotary="yes")


def test_a_single_layer_without_heads_to_share_out_is_full_attention_and_rotated():
    choice = reach.budget(n_layers=1, n_heads=8, n_kv_heads=1, context=2048, share=1.0, rotary=True)
    assert choice.reach == {"pattern": "full"} and choice.layers == reach.full(n_layers=1, n_heads=8, n_kv_heads=1)
    assert "nats" not in choice.reason
    with pytest.raises(ValueError, match=r"the cheapest plan that we know, which takes 31\.6%"):
        reach.budget(n_layers=1, n_heads=8, context=256, share=0.3, rotary=True)


def test_reasons_say_in_what_the_plan_of_the_evidence_differed():
    sizes = {"n_layers": 8, "share": 1.0}
    short = reach.budget(n_heads=2, context=8, **sizes)
    assert short.reason.endswith("; that plan had windows of 64 and one head of eight global.")
    grouped = reach.budget(n_heads=8, n_kv_heads=2, context=2048, **sizes)
    assert grouped.layers[0].plan.n_global == 4 and grouped.reason.endswith("; that plan had one head of eight global.")
    assert reach.budget(n_heads=8, context=256, **sizes).reason.endswith("; that plan had windows of 512 to 8.")
    assert "that plan" not in reach.budget(n_heads=8, context=2048, **sizes).reason


def test_budget_of_the_experiment_gives_its_plans():
    sizes = {"n_layers": 8, "n_heads": 8, "context": 2048}
    ladder = reach.budget(**sizes, share=0.24)
    assert ladder.layers == reach.ladder(n_layers=8, n_heads=8)
    assert "ladder" in ladder.reason
    head_wise = reach.budget(**sizes, share=0.2)
    assert head_wise.layers == reach.long_short(1, 64, n_layers=8, n_heads=8)
    assert "found needles as full attention does" in head_wise.reason
    late = reach.budget(**sizes, n_kv_heads=1, share=0.2)
    assert late.layers == reach.interleave("LLLLLLLG", 64, n_layers=8, n_heads=8, n_kv_heads=1)
    assert "full layer at the end" in late.reason and "46 and 80 % of chains of variables" in late.reason


def test_budget_that_a_plan_meets_exactly_is_enough():
    sizes = {"n_layers": 8, "n_heads": 8}
    found = reach.costs(reach.ladder(**sizes), context=2048, head_dim=64)
    for limit in ({"cache_bytes": found.cache_bytes}, {"share": found.share}):
        assert reach.budget(**sizes, context=2048, **limit).layers == reach.ladder(**sizes)


def test_windows_shrink_with_the_context():
    def chosen(n_heads, context):
        return reach.budget(n_layers=8, n_heads=n_heads, context=context, share=1.0).layers

    assert chosen(8, 128) == reach.ladder(32, 8, n_layers=8, n_heads=8)
    assert chosen(8, 120) == reach.long_short(1, 64, n_layers=8, n_heads=8)  # two windows are no ladder
    assert chosen(2, 16) == reach.long_short(1, 16, n_layers=8, n_heads=2)
    assert chosen(1, 16) == reach.interleave("LLLLLLLG", 16, n_layers=8, n_heads=1)


def test_ladder_takes_three_windows_at_least():
    sizes = {"n_layers": 8, "context": 2048, "share": 1.0}
    assert reach.budget(n_heads=4, **sizes).layers == reach.ladder(n_layers=8, n_heads=4)
    assert reach.budget(n_heads=3, **sizes).layers == reach.long_short(1, 64, n_layers=8, n_heads=3)


def test_costs_of_the_choice_are_those_of_its_kv_heads():
    choice = reach.budget(n_layers=8, n_heads=8, n_kv_heads=2, context=2048, share=1.0)
    assert choice.costs == reach.costs(choice.layers, context=2048, n_kv_heads=2, head_dim=64)


def test_full_layers_are_halved_until_the_budget_is_met():
    sixteenth = reach.interleave("L" * 15 + "G", 64, n_layers=32, n_heads=1)
    share = reach.costs(sixteenth, context=2048).share
    assert reach.budget(n_layers=32, n_heads=1, context=2048, share=share).layers == sixteenth


@given(
    st.integers(1, 40),
    st.sampled_from([(1, 1), (4, 1), (6, 6), (8, 2), (12, 12), (32, 8)]),
    st.integers(1, 70_000),
    st.floats(0.001, 1),
    st.booleans(),
)
def test_choice_is_within_its_budget(n_layers, heads, context, share, by_cache):
    n_heads, n_kv_heads = heads
    sizes = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads}
    whole = reach.costs(reach.full(**sizes), context=context, n_kv_heads=n_kv_heads, head_dim=64).cache_bytes
    limit = {"cache_bytes": share * whole} if by_cache else {"share": share}
    try:
        choice = reach.budget(**sizes, context=context, **limit)
    except ValueError as error:
        assert "must allow the cheapest plan that we know" in str(error)
        return
    assert (choice.costs.cache_share if by_cache else choice.costs.share) <= share * (1 + 1e-9)
    assert any(layer.plan.n_global for layer in choice.layers)
    assert choice.reason.count(". ") == 0
    windows = [window for layer in choice.layers for window in layer.plan.windows if window is not None]
    assert max(windows, default=1) <= context


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a budget must have cache_bytes, share or both, got neither"),
        ({"share": 1.5}, "share must be a number above 0 and at most 1, got 1.5"),
        ({"cache_bytes": 0}, "cache_bytes must be a number above 0, got 0"),
        ({"share": 0.01}, r"the budget must allow the cheapest plan that we know, which takes 13\.2%"),
        ({"share": 0.5, "n_kv_heads": 3}, "n_kv_heads must be a divisor"),
        ({"share": 0.5, "n_kv_heads": "2"}, "n_kv_heads must be an integer >= 1, got '2'"),
        ({"share": 0.5, "n_heads": 0}, "n_heads must be an integer >= 1, got 0"),
        ({"share": 0.5, "context": None}, "context must be an integer >= 1, got None"),
        ({"cache_bytes": 4000, "head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"cache_bytes": 4000, "value_bytes": -1}, "value_bytes must be an integer >= 1, got -1"),
    ],
)
def test_impossible_budget_gets_one_clear_error(given, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        reach.budget(**{"n_layers": 8, "n_heads": 8, "context": 2048} | given)
