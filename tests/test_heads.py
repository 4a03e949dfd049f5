"""HeadPlan: constructors, validation, slices, dictionaries, ALiBi slopes."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort import HeadPlan

WINDOWS = st.none() | st.integers(1, 10_000)
RATES = st.floats(0, 10, allow_nan=False)


@st.composite
def plans(draw):
    n_heads = draw(st.integers(1, 12))

    def per_head(entries):
        return draw(st.lists(entries, min_size=n_heads, max_size=n_heads))

    return HeadPlan(
        windows=per_head(WINDOWS),
        decays=per_head(RATES) if draw(st.booleans()) else None,
        slopes=per_head(RATES) if draw(st.booleans()) else None,
    )


def test_full_plan_has_only_global_heads():
    plan = HeadPlan.full(12)
    assert plan.windows == (None,) * 12
    assert plan.n_heads == plan.n_global == 12


def test_long_short_plan_puts_global_heads_first():
    plan = HeadPlan.long_short(n_heads=12, n_global=2, window=128)
    assert plan.windows == (None, None, *(128,) * 10)
    assert (plan.n_heads, plan.n_global) == (12, 2)


@pytest.mark.parametrize("n_global", [0, 4])
def test_long_short_plan_may_be_all_local_or_all_global(n_global):
    assert HeadPlan.long_short(n_heads=4, n_global=n_global, window=8).n_global == n_global


def test_las_plan_doubles_the_decay_from_head_to_head():
    plan = HeadPlan.las(n_heads=8, max_decay=0.001)
    assert plan.windows == (None,) * 8
    assert plan.decays[0] == 0.0
    assert plan.decays[-1] == 0.001
    assert all(b == pytest.approx(2 * a) for a, b in zip(plan.decays[1:], plan.decays[2:], strict=False))


def test_las_plan_may_give_every_head_a_window():
    plan = HeadPlan.las(n_heads=4, max_decay=0.001, window=32)
    assert plan.windows == (32,) * 4
    assert plan.decays == HeadPlan.las(n_heads=4, max_decay=0.001).decays
    with pytest.raises(ValueError, match="window must be an integer >= 1, got 0"):
        HeadPlan.las(n_heads=4, max_decay=0.001, window=0)


def test_las_plan_of_one_head_or_without_decay_is_plain_attention():
    assert HeadPlan.las(n_heads=1, max_decay=0.5) == HeadPlan.full(1)
    assert HeadPlan.las(n_heads=4, max_decay=0.0) == HeadPlan.full(4)


def test_plan_takes_any_iterable_and_keeps_tuples():
    plan = HeadPlan(windows=iter([None, 4]), decays=[0, 1], slopes=(x for x in (1, 0.5)))
    assert plan.windows == (None, 4)
    assert plan.decays == (0.0, 1.0)
    assert plan.slopes == (1.0, 0.5)
    assert all(isinstance(rate, float) for rate in plan.decays + plan.slopes)


def test_rates_of_zero_are_the_same_as_none():
    assert HeadPlan(windows=(None, 4), decays=(0, 0), slopes=(0.0, 0.0)) == HeadPlan(windows=(None, 4))


def test_equal_plans_have_equal_hashes():
    one, other = HeadPlan(windows=[None, 4], slopes=[1, 2]), HeadPlan(windows=(None, 4), slopes=(1.0, 2.0))
    assert one == other
    assert hash(one) == hash(other)
    assert {one: "found"}[other] == "found"
    assert one != HeadPlan(windows=(None, 4))


def test_plan_cannot_be_changed():
    plan = HeadPlan.full(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.windows = (1, 2)


def test_plan_takes_keywords_only():
    with pytest.raises(TypeError, match="positional"):
        HeadPlan((None, 4))


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (12, "windows must be a sequence with one entry per head, got 12"),
        ("full", "windows must be a sequence with one entry per head, got 'full'"),
        (None, "windows must be a sequence with one entry per head, got None"),
        ({8, None}, r"windows must be a sequence with one entry per head, got \{"),
        ((), "windows must have at least one entry"),
        ((None, 0), r"windows\[1\] must be None \(global\) or an integer >= 1, got 0"),
        ((-1,), r"windows\[0\] must be None \(global\) or an integer >= 1, got -1"),
        ((4, 2.0), r"windows\[1\] must be None \(global\) or an integer >= 1, got 2.0"),
        ((True,), r"windows\[0\] must be None \(global\) or an integer >= 1, got True"),
    ],
)
def test_wrong_windows_are_refused(windows, message):
    with pytest.raises(ValueError, match=message):
        HeadPlan(windows=windows)


@pytest.mark.parametrize("name", ["decays", "slopes"])
@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (0.5, "must be None or a sequence with one entry per head, got 0.5"),
        ("ab", "must be None or a sequence with one entry per head, got 'ab'"),
        ({0.2, 0.1}, r"must be None or a sequence with one entry per head, got \{"),
        ({0: 1, 1: 2}, r"must be None or a sequence with one entry per head, got \{0: 1, 1: 2\}"),
        ((0.5,), "{name} must have one entry per head, 2 as windows has, got 1"),
        ((0.5, -0.1), r"{name}\[1\] must be a number from 0 to 1e\+30, got -0.1"),
        ((float("nan"), 0.5), r"{name}\[0\] must be a number from 0 to 1e\+30, got nan"),
        ((0.5, float("inf")), r"{name}\[1\] must be a number from 0 to 1e\+30, got inf"),
        ((None, 0.5), r"{name}\[0\] must be a number from 0 to 1e\+30, got None"),
        ((1e39, 0.5), r"{name}\[0\] must be a number from 0 to 1e\+30, got 1e\+39"),
        ((True, 0.5), r"{name}\[0\] must be a number from 0 to 1e\+30, got True"),
    ],
)
def test_wrong_rates_are_refused(name, rates, message):
    with pytest.raises(ValueError, match=message.replace("{name}", name)) as error:
        HeadPlan(windows=(None, 4), **{name: rates})
    assert str(error.value).startswith(name)


@pytest.mark.parametrize("n_heads", [0, -1, 2.0, True, None])
def test_wrong_number_of_heads_is_refused(n_heads):
    for build in (
        lambda: HeadPlan.full(n_heads),
        lambda: HeadPlan.long_short(n_heads=n_heads, n_global=0, window=4),
        lambda: HeadPlan.las(n_heads=n_heads, max_decay=0.1),
    ):
        with pytest.raises(ValueError, match=f"n_heads must be an integer >= 1, got {n_heads!r}"):
            build()


@pytest.mark.parametrize("n_global", [-1, 5, 1.0, True, None])
def test_wrong_number_of_global_heads_is_refused(n_global):
    with pytest.raises(ValueError, match=f"n_global must be an integer from 0 to n_heads=4, got {n_global!r}"):
        HeadPlan.long_short(n_heads=4, n_global=n_global, window=8)


@pytest.mark.parametrize("window", [0, -3, 8.0, None, False])
def test_wrong_window_of_long_short_plan_is_refused(window):
    with pytest.raises(ValueError, match=f"window must be an integer >= 1, got {window!r}"):
        HeadPlan.long_short(n_heads=4, n_global=1, window=window)


@pytest.mark.parametrize("max_decay", [-0.1, float("nan"), float("inf"), None, True])
def test_wrong_max_decay_is_refused(max_decay):
    with pytest.raises(ValueError, match=rf"max_decay must be a number from 0 to 1e\+30, got {max_decay!r}"):
        HeadPlan.las(n_heads=4, max_decay=max_decay)


def test_kv_head_reaches_as_far_as_the_farthest_of_its_query_heads():
    plan = HeadPlan(windows=(None, 8, 4, 2, 3, 16))
    assert plan.kv_windows(6) == plan.windows
    assert plan.kv_windows(3) == (None, 4, 16)
    assert plan.kv_windows(2) == (None, 16)
    assert plan.kv_windows(1) == (None,)


@pytest.mark.parametrize("n_kv_heads", [0, -1, 4, 12, 2.0, True, None])
def test_number_of_kv_heads_that_does_not_divide_is_refused(n_kv_heads):
    with pytest.raises(ValueError, match=f"n_kv_heads must be a divisor of the plan's 6 heads, got {n_kv_heads!r}"):
        HeadPlan.full(6).kv_windows(n_kv_heads)


@given(plan=plans(), data=st.data())
def test_slice_keeps_the_entries_of_its_heads(plan, data):
    start = data.draw(st.integers(0, plan.n_heads - 1))
    stop = data.draw(st.integers(start + 1, plan.n_heads))
    part = plan[start:stop]
    assert part.windows == plan.windows[start:stop]
    zeros = (0.0,) * plan.n_heads
    for name in ("decays", "slopes"):
        expected = (getattr(plan, name) or zeros)[start:stop]
        assert (getattr(part, name) or zeros[start:stop]) == expected


def test_slice_takes_steps_and_negative_bounds():
    plan = HeadPlan(windows=(None, 1, 2, 3))
    assert plan[::2].windows == (None, 2)
    assert plan[-2:].windows == (2, 3)
    assert plan[:] == plan


def test_empty_slice_is_refused():
    with pytest.raises(ValueError, match="windows must have at least one entry"):
        HeadPlan.full(4)[2:2]


def test_index_that_is_no_slice_is_refused():
    with pytest.raises(TypeError, match=r"index must be a slice, as in plan\[2:5\], got 2"):
        HeadPlan.full(4)[2]


@given(plan=plans())
def test_plan_survives_json(plan):
    again = HeadPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert hash(again) == hash(plan)


def test_dictionary_may_leave_out_rates():
    assert HeadPlan.from_dict({"windows": [None, 4]}) == HeadPlan(windows=(None, 4))


@pytest.mark.parametrize("data", [{}, {"decays": [0.1]}, {"windows": [4], "window": 4}])
def test_dictionary_with_wrong_keys_is_refused(data):
    with pytest.raises(ValueError, match="plan must have the keys windows, decays, slopes and firsts, got"):
        HeadPlan.from_dict(data)


# Press et al., `get_slopes` of github.com/ofirpress/attention_with_linear_biases: powers of 2 ** (-8 / n) for n a power
# of two; otherwise those of the power of two below, then every other one of the power above.
ALIBI_EXPONENTS = {
    4: [2, 4, 6, 8],
    6: [2, 4, 6, 8, 1, 3],
    8: [1, 2, 3, 4, 5, 6, 7, 8],
    12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
}


@pytest.mark.parametrize("n_heads", ALIBI_EXPONENTS)
def test_alibi_slopes_are_those_of_the_paper(n_heads):
    slopes = HeadPlan.full(n_heads).with_alibi().slopes
    assert slopes == pytest.approx([2.0**-exponent for exponent in ALIBI_EXPONENTS[n_heads]], rel=1e-12)


def test_alibi_changes_nothing_but_the_slopes():
    plan = HeadPlan(windows=(None, 4), decays=(0.0, 0.5))
    biased = plan.with_alibi()
    assert (biased.windows, biased.decays) == (plan.windows, plan.decays)
    assert plan.slopes is None


def test_plans_without_first_keys_are_written_as_before():
    plan = HeadPlan(windows=(None, 8))
    assert plan.to_dict() == {"windows": [None, 8], "decays": None, "slopes": None}
    assert HeadPlan(windows=(None, 8), firsts=(3, 0)) == plan  # a global head sees them anyway
    assert HeadPlan.from_dict({"windows": [None, 8]}) == plan


def test_first_keys_are_written_read_sliced_and_kept_by_copies():
    plan = HeadPlan.streaming(n_heads=4, first=3, recent=8, n_global=1)
    assert plan.to_dict()["firsts"] == [0, 3, 3, 3]
    assert HeadPlan.from_dict(plan.to_dict()) == plan
    assert plan[2:].firsts == (3, 3) and plan[:1].firsts is None
    assert plan.with_alibi().firsts == plan.firsts


@pytest.mark.parametrize(
    ("firsts", "message"),
    [
        ((1,), "firsts must have one entry per head, 2 as windows has, got 1"),
        ((1, -1), r"firsts\[1\] must be an integer from 0"),
        ((True, 1), r"firsts\[0\] must be an integer from 0"),
        ("ab", "firsts must be None or a sequence"),
    ],
)
def test_bad_first_keys_are_refused(firsts, message):
    with pytest.raises(ValueError, match=message):
        HeadPlan(windows=(4, 8), firsts=firsts)
