"""The record of one layer's reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort import HeadPlan
from longshort.reach import LayerReach, QueryTemperature, Rotation

PLAN = HeadPlan(windows=(None, None, 8, 4))

bases = st.none() | st.floats(1.5, 1e12)
shares = st.floats(0, 1)
temperatures = st.none() | st.builds(QueryTemperature, scale=st.floats(0, 10), every=st.integers(1, 10**6))
records = st.builds(
    LayerReach,
    plan=st.lists(st.none() | st.integers(1, 4096), min_size=1, max_size=6).map(lambda w: HeadPlan(windows=tuple(w))),
    local_base=bases,
    global_base=bases,
    local_share=shares,
    global_share=shares,
    temperature=temperatures,
    sink=st.sampled_from(["none", "learned"]),
)


@given(records)
def test_record_survives_its_dict(record):
    again = LayerReach.from_dict(record.to_dict())
    assert again == record
    assert hash(again) == hash(record)


def test_dict_of_a_plain_layer_is_its_plan_alone():
    assert LayerReach(plan=PLAN).to_dict() == {"plan": PLAN.to_dict()}


def test_kv_head_is_rotated_as_the_reach_of_its_query_heads_says():
    layer = LayerReach(plan=PLAN, local_base=1e4, global_base=1e6, local_share=0.5)
    assert layer.rotations(4) == (Rotation(1e6, 1.0),) * 2 + (Rotation(1e4, 0.5),) * 2
    assert layer.rotations(2) == (Rotation(1e6, 1.0), Rotation(1e4, 0.5))
    assert not layer.rotates_alike
    assert not LayerReach(plan=PLAN, global_share=0).rotates_alike
    assert LayerReach(plan=PLAN, sink="learned").rotates_alike


def test_heads_without_rotation_have_no_base():
    layer = LayerReach(plan=PLAN, global_base=1e6, global_share=0)
    assert layer.rotations(2)[0] == Rotation(None, 0.0)


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_backend_without_sinks_is_refused(backend):
    LayerReach(plan=PLAN).check_backend(backend)
    with pytest.raises(ValueError, match=f"backend must be auto, reference, blocked or triton .* got '{backend}'"):
        LayerReach(plan=PLAN, sink="learned").check_backend(backend)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"plan": (None, 8)}, "plan must be a HeadPlan"),
        ({"local_base": 1}, "local_base must be None or a number above 1"),
        ({"global_base": float("nan")}, "global_base must be None or a number above 1"),
        ({"global_base": 1e31}, "global_base must be None or a number above 1, up to 1e30"),
        ({"global_share": 1.5}, "global_share must be a number from 0 to 1, got 1.5"),
        ({"sink": "first"}, "sink must be one of none, learned, got 'first'"),
        ({"temperature": 0.1}, "temperature must be None or a QueryTemperature"),
    ],
)
def test_wrong_field_is_named(fields, words):
    with pytest.raises(ValueError, match=words):
        LayerReach(**{"plan": PLAN, **fields})


def test_wrong_temperature_is_named():
    assert QueryTemperature(scale=0).scale == 0
    with pytest.raises(ValueError, match=r"temperature.scale must be a number from 0 to 1e30, got -0.1"):
        QueryTemperature(scale=-0.1)
    with pytest.raises(ValueError, match=r"temperature.every must be an integer >= 1, got 0"):
        QueryTemperature(every=0)
    with pytest.raises(ValueError, match="temperature must be a mapping of scale and every"):
        LayerReach.from_dict({"plan": PLAN.to_dict(), "temperature": {"floor": 8}})


def test_unknown_key_of_a_dict_is_refused():
    with pytest.raises(ValueError, match="must have a plan, and of local_base"):
        LayerReach.from_dict({"plan": PLAN.to_dict(), "base": 1e4})
    with pytest.raises(ValueError, match="must have a plan"):
        LayerReach.from_dict({})
