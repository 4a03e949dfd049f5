"""Patterns of reach for whole models, in Python and as a configuration writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.reach import PLANS
from longshort import HeadPlan, reach

SIZES = {"n_layers": 8, "n_heads": 8}


@st.composite
def sizes(draw, least_kv_heads=1):
    kv_heads, group = draw(st.integers(least_kv_heads, 9)), draw(st.integers(1, 4))
    return {"n_layers": draw(st.integers(1, 12)), "n_heads": kv_heads * group, "n_kv_heads": kv_heads}


def windows(layers):
    return [layer.plan.windows for layer in layers]


def check(layers, given):
    """Right counts, and one reach in each group of query heads."""
    assert [layer.n_heads for layer in layers] == [given["n_heads"]] * given["n_layers"]
    group = given["n_heads"] // given["n_kv_heads"]
    for row in windows(layers):
        assert all(len(set(row[first : first + group])) == 1 for first in range(0, len(row), group))
    assert tuple(reach.LayerReach.from_dict(layer.to_dict()) for layer in layers) == layers


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("full", reach.full(**SIZES)),
        ("ls2-w64", reach.long_short(2, 64, **SIZES)),
        ("one-full-8", reach.interleave("LLLLLLLG", 64, **SIZES)),
        ("ladder", reach.ladder(**SIZES)),
        ("ramp", reach.ramp(**SIZES)),
    ],
)
def test_pattern_is_the_plan_of_the_experiment(name, layers):
    assert tuple(windows(layers)) == PLANS[name]


@given(sizes(), st.data())
def test_long_short_has_its_global_heads_first(given, data):
    group = given["n_heads"] // given["n_kv_heads"]
    n_global = group * data.draw(st.integers(0, given["n_kv_heads"]))
    layers = reach.long_short(n_global, 16, **given)
    check(layers, given)
    assert set(windows(layers)) == {(None,) * n_global + (16,) * (given["n_heads"] - n_global)}


@given(sizes(), st.text("LG", min_size=1, max_size=12), st.booleans())
def test_interleaved_layers_follow_the_letters(given, letters, last_global):
    letters = letters[: given["n_layers"]]
    layers = reach.interleave(letters, 7, last_global=last_global, **given)
    check(layers, given)
    expected = (letters * given["n_layers"])[: given["n_layers"]]
    expected = expected[:-1] + "G" if last_global else expected
    found = "".join("G" if row == (None,) * given["n_heads"] else "L" for row in windows(layers))
    assert found == expected


@given(sizes(least_kv_heads=2), st.integers(1, 2000), st.integers(1, 2000))
def test_ladder_descends_within_its_ends(given, one, other):
    smallest, largest = sorted((one, other))
    layers = reach.ladder(largest, smallest, **given)
    check(layers, given)
    group = given["n_heads"] // given["n_kv_heads"]
    row = layers[0].plan.windows
    assert row[:group] == (None,) * group
    local = row[group:]
    assert None not in local
    assert list(local) == sorted(local, reverse=True)
    assert smallest <= local[-1] <= local[0] <= largest
    assert given["n_kv_heads"] == 2 or local[0] == largest


@given(sizes(), st.integers(1, 2000), st.integers(1, 2000), st.booleans())
def test_ramp_grows_with_depth(given, one, other, last_global):
    first, last = sorted((one, other))
    given["n_layers"] += 1
    layers = reach.ramp(first, last, last_global=last_global, **given)
    check(layers, given)
    grown = [row[0] for row in windows(layers)]
    if last_global:
        assert grown.pop() is None
    assert grown == sorted(grown)
    assert grown[0] == first
    assert len(grown) == 1 or grown[-1] == last


def test_options_reach_every_layer():
    layers = reach.interleave("LG", 16, n_layers=4, n_heads=2, dual_rope=True, sinks="local", temperature=True)
    assert {layer.local_base for layer in layers} == {10_000.0}
    assert {layer.global_base for layer in layers} == {1_000_000.0}
    assert [layer.sink for layer in layers] == ["learned", "none"] * 2
    assert layers[0].temperature == reach.QueryTemperature(scale=0.1, every=8192)
    nope = reach.ladder(n_layers=1, n_heads=4, nope=True, sinks=True)[0]
    assert (nope.global_share, nope.local_share, nope.sink) == (0.0, 1.0, "learned")
    both = reach.ladder(n_layers=1, n_heads=4, nope=True, dual_rope=True, sinks="local")[0]
    assert (both.local_base, both.global_base, both.sink) == (10_000.0, None, "learned")


def test_single_rung_is_in_the_middle_of_the_ladder():
    assert windows(reach.ladder(512, 8, n_layers=1, n_heads=2)) == [(None, 64)]


def test_window_may_be_the_whole_context():
    layers = reach.streaming(64, 64, **SIZES, context=64)
    assert reach.resolve(layers, **SIZES, context=64) == layers


BAD = {
    "layers must be letters L .local. and G .global., such as LLLLLG, got 'LLXG'": {"layers": "LLXG", "window": 8},
    "layers must be letters L": {"layers": "", "window": 8},
    "layers must be at most n_layers=8 letters": {"layers": "LLLLLLLLG", "window": 8},
    "window must be an integer from 1": {"layers": "LG", "window": 0},
    "window must be an integer from 1 to 2.31 - 1, got 2147483648": {"layers": "LG", "window": 2**31},
    "window must be at most context=64, got 65": {"layers": "LG", "window": 65},
    "nope must be True or False": {"layers": "LG", "window": 8, "nope": 1},
    "last_global must be True or False, got 'maybe'": {"layers": "LG", "window": 8, "last_global": "maybe"},
    "sinks must be True, False or 'local'": {"layers": "LG", "window": 8, "sinks": "all"},
    "dual_rope must be True, False or the bases": {"layers": "LG", "window": 8, "dual_rope": 10_000},
    "local_base must be None or a number above 1": {"layers": "LG", "window": 8, "dual_rope": [0, 1e6]},
    "temperature must be true, false or": {"layers": "LG", "window": 8, "temperature": 0.1},
}


@pytest.mark.parametrize("words", BAD)
def test_bad_interleave_gets_one_clear_error(words):
    with pytest.raises(ValueError, match=f"^{words}"):
        reach.interleave(**BAD[words], **SIZES, context=64)
    with pytest.raises(ValueError, match=f"^reach interleave: {words}"):
        reach.resolve({"pattern": "interleave", **BAD[words]}, **SIZES, context=64)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: reach.full(n_layers=0, n_heads=4), "n_layers must be an integer from 1"),
        (lambda: reach.full(n_layers=2, n_heads=4, n_kv_heads=3), "n_kv_heads must be a divisor of n_heads=4, got 3"),
        (lambda: reach.long_short(1, 8, n_layers=2, n_heads=4, n_kv_heads=2), "n_global must be .* multiple of .* = 2"),
        (lambda: reach.long_short(5, 8, n_layers=2, n_heads=4), "n_global must be an integer from 0 to n_heads=4"),
        (lambda: reach.ladder(n_layers=2, n_heads=4, n_kv_heads=1), "ladder must have KV heads beside the 1 global"),
        (lambda: reach.ladder(8, 16, n_layers=2, n_heads=4), "smallest must be at most largest=8, got 16"),
        (lambda: reach.ladder(8, 0, n_layers=2, n_heads=4), "smallest must be an integer from 1 to .*, got 0"),
        (lambda: reach.ladder(n_layers=2, n_heads=4, context=256), "largest must be at most context=256, got 512"),
        (lambda: reach.ramp(64, 8, n_layers=2, n_heads=4), "first must be at most last=8, got 64"),
        (lambda: reach.ramp(n_layers=1, n_heads=4), "n_layers must be at least 2 for a ramp, got 1"),
        (lambda: reach.ramp(n_layers=8, n_heads=4, last_global=3), "last_global must be True or False, got 3"),
        (lambda: reach.full(n_layers=2, n_heads=4, context="2k"), "context must be None or an integer >= 1, got '2k'"),
        (lambda: reach.ladder(n_layers=2, n_heads=4, context=1e4), r"context must be None or .* got 10000\.0"),
        (lambda: reach.full(n_layers=2, n_heads=4, windows=8), "options must be among .*, got windows"),
    ],
)
def test_bad_pattern_gets_one_clear_error(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("laddr", "reach must be full, long_short, .* or a model .*, got 'laddr'"),
        (3, "reach must be a pattern"),
        ({}, "reach must have the key pattern or the key like"),
        ({"pattern": "full", "like": "gemma-3"}, "reach must have the key pattern or the key like"),
        ({"pattern": "gemma-3"}, "reach must be {like: gemma-3}, got {pattern: gemma-3}"),
        ({"like": "ladder"}, "reach must be {pattern: ladder}, got {like: ladder}"),
        ({"like": "gemma-9"}, "reach must be gemma-2, .*, got 'gemma-9'"),
        ({"pattern": ["full"]}, "reach must be full"),
        ("interleave", "reach interleave needs a value for layers, window"),
        ({"pattern": "ladder", "window": 8}, "reach ladder takes largest, smallest, .*, got window"),
        ({"like": "gemma-3", "nope": True}, "reach gemma-3 takes window, sinks, got nope"),
        ({"like": "gemma-2"}, "reach gemma-2: window must be at most context=2048, got 4096"),
        ([], "reach must have one entry for each of n_layers=8, got 0"),
        ([{"plan": {"windows": [4]}}] * 8, r"reach\[0\] must have a plan of n_heads=8 heads, got 1"),
        ([{"plan": {"windows": []}}], r"reach\[0\]: windows must have at least one entry"),
        (["full"] * 8, r"reach\[0\] must be a LayerReach or a mapping, got 'full'"),
    ],
)
def test_bad_notation_gets_one_clear_error(written, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        reach.resolve(written, **SIZES, context=2048)


def test_layers_are_what_their_dicts_resolve_to():
    layers = reach.interleave("LG", 16, **SIZES, nope=True)
    assert reach.resolve([layer.to_dict() for layer in layers], **SIZES) == layers
    assert reach.resolve(layers, **SIZES) == layers
    assert reach.resolve("gemma-3", **SIZES) == reach.like("gemma-3", **SIZES)


def test_streaming_heads_see_the_first_keys_and_the_recent_ones():
    layers = reach.streaming(4, 64, n_layers=2, n_heads=8, n_kv_heads=4, n_global=2)
    assert {layer.plan.windows for layer in layers} == {(None, None, *(64,) * 6)}
    assert {layer.plan.firsts for layer in layers} == {(0, 0, *(4,) * 6)}
    written = {"pattern": "streaming", "first": 4, "recent": 64, "n_global": 2}
    assert reach.resolve(written, n_layers=2, n_heads=8, n_kv_heads=4, context=128) == layers
    assert tuple(reach.LayerReach.from_dict(layer.to_dict()) for layer in layers) == layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64), "first must be an integer from 1"),
        ((4, 0), "recent must be an integer from 1"),
        ((4, 4096), "recent must be at most context=2048, got 4096"),
        ((4096, 4), "first must be at most context=2048, got 4096"),
    ],
)
def test_bad_streaming_gets_one_clear_error(arguments, message):
    with pytest.raises(ValueError, match=message):
        reach.streaming(*arguments, context=2048, **SIZES)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 40))
def test_costs_of_streaming_heads_are_those_of_a_count(length, window, first):
    seen = sum(len({*range(max(0, t + 1 - window), t + 1), *range(min(first, t + 1))}) for t in range(length))
    plan = HeadPlan(windows=(window,), firsts=(first,))
    found = reach.costs([reach.LayerReach(plan=plan)], context=length)
    assert found.visible_keys * length == pytest.approx(seen)
    assert found.cache_bytes * length == pytest.approx(4 * min(window + first, length))
