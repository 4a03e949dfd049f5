"""A decoding step over rings and full pools, plain and by the Triton kernel (interpreted), against the reference."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the package triton is not installed")

from longshort import HeadPlan
from longshort.nn import LSStaticCache
from longshort.ops.decode import launch
from longshort.ops.decode.launch import DecodeShape
from longshort.ops.options import Options

from .cases import Step, check, check_statistics_change_no_bit, run

BACKENDS = ["blocked", "triton"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 2, 63, 64, 65])
@pytest.mark.every(3)
def test_a_ring_is_right_before_and_after_many_wraps(window, backend):
    for held in (0, window - 1, window + 1, 150):
        check(Step(windows=(window, None), held=held, rollback=held % 3), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("held", [0, 1, 31, 32, 33, 199])
def test_a_split_head_is_right_at_any_length(held, backend):
    check(Step(windows=(None, 5, 20), held=held), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("programs", [1, 2, 5, 40])
def test_the_number_of_parts_changes_nothing(programs, backend):
    check(Step(windows=(None, 5), held=90, capacity=100, shape=DecodeShape(16, 4, 1, programs)), backend)


@pytest.mark.parametrize("programs", [1, 5])
def test_one_query_by_the_matrix_units_agrees_too(programs):
    shape = DecodeShape(16, 4, 1, programs, matrix=True)
    check(Step(windows=(None, 5, 20), held=90, capacity=100, shape=shape), "triton")


def test_parts_are_joined_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(launch, "_JOINED", 1)  # eight, the fewest that are joined at a time, of twelve
    shape = DecodeShape(16, 4, 1, 12.0)
    check(Step(windows=(None, 5), held=180, capacity=190, batch=1, shape=shape), "triton")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_queries_of_mixed_windows_share_their_keys(kv_heads, backend):
    check(Step(windows=(None, 3, 40, 9, 65, 1), held=133, kv_heads=kv_heads), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("new", "held"), [(2, 0), (3, 61), (5, 130), (8, 7)])
def test_several_tokens_see_each_other_in_order(new, held, backend):
    check(Step(windows=(None, 6, 2, 64), held=held, new=new, rollback=new - 1, kv_heads=2), backend)


OPTIONS = {
    "softcap": {"softcap": 1.5},
    "slopes": {"slopes": (0.1, 0.0, 0.3)},
    "decays": {"decays": (0.01, 0.2, 0.0)},
    "all": {"softcap": 2.0, "slopes": (0.1, 0.0, 0.3), "decays": (0.01, 0.2, 0.0)},
    "padding": {"batch": 3, "padding": (0, 40, 70)},
    "another text before": {"batch": 2, "padding": (0, 20), "cut": 80},
    "nothing but padding": {"batch": 2, "padding": (90, 0)},
    "odd head dim": {"dim": 40},
    "wide head": {"dim": 128},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.every(3)
def test_each_option_agrees_with_the_reference(name, new, backend):
    check(Step(windows=(None, 9, 33), held=85, new=new, rollback=4, **OPTIONS[name]), backend)


@pytest.mark.parametrize("new", [1, 2])
def test_half_precision_errs_by_its_rounding(new):
    check(Step(windows=(None, 9, 33), held=120, new=new, rollback=4, dtype=torch.float16), "triton")


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=8)
@given(data=st.data())
def test_any_step_agrees_with_the_reference(backend, data):
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    reach = st.one_of(st.none(), st.integers(1, 70))
    windows = data.draw(st.lists(reach, min_size=kv_heads * group, max_size=kv_heads * group))
    new, batch = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    held = data.draw(st.integers(0, 90))
    padding = data.draw(st.one_of(st.none(), st.tuples(*[st.integers(0, held + 1)] * batch)))
    shape = DecodeShape(data.draw(st.sampled_from([16, 64])), 4, 1, data.draw(st.integers(1, 9)))
    sizes = {"kv_heads": kv_heads, "new": new, "batch": batch, "padding": padding, "capacity": 96, "shape": shape}
    check(Step(windows=tuple(windows), held=held, rollback=data.draw(st.integers(new - 1, 5)), **sizes), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("programs", [1, 40], ids=["whole", "split"])
def test_statistics_of_either_kind_change_no_bit(programs, new, backend):
    shape = DecodeShape(16, 4, 1, programs)
    step = Step(windows=(None, 5, 30), held=90, new=new, rollback=2, softcap=20.0, padding=(3,), shape=shape)
    check_statistics_change_no_bit(step, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_stays_visible_in_its_head_alone(backend, monkeypatch):
    original = Step.draw

    def draw(self):
        q, k, v, ids = original(self)
        k[0, 1, 118] = torch.nan
        return q, k, v, ids

    monkeypatch.setattr(Step, "draw", draw)
    out, logits, *_ = run(Step(windows=(None, None, 5), held=120), backend)
    assert out[0, 1].isnan().all() and logits.max[1].isnan() and logits.min[1].isnan()
    assert not out[0, ::2].isnan().any() and not logits.max[::2].isnan().any()
    _, logits, *_ = run(Step(windows=(None, None, 5), held=120), backend, stats="max")
    assert logits.max.isnan().tolist() == [False, True, False]


def test_two_runs_give_equal_bits_whichever_part_ends_last():
    step = Step(windows=(None, 5), held=90, capacity=100, shape=DecodeShape(16, 4, 1, 40))
    first, second = (run(step, "triton")[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(("dim", "warps"), [(32, 4), (64, 2), (128, 4), (256, 4), (40, 1)])  # 1, 2, 2, 4 and 4 pieces
def test_a_row_of_as_many_numbers_as_threads_is_loaded_in_pieces(dim, warps):
    check(Step(windows=(None, 5), held=40, dim=dim, capacity=60, shape=DecodeShape(16, warps, 1, 4.0)), "triton")


@pytest.fixture
def tables(monkeypatch):
    """Whether each launch read a table of its heads; with `tables.forced` set, all do."""
    cut, at_equal_distances = launch._cut.__wrapped__, launch._at_equal_distances

    class Seen(list):
        forced = False

    def noted(*args):
        result = cut(*args)
        seen.append(result.table is not None)
        return result

    seen = Seen()
    monkeypatch.setattr(launch, "_cut", noted)
    monkeypatch.setattr(launch, "_at_equal_distances", lambda heads: () if seen.forced else at_equal_distances(heads))
    return seen


@pytest.mark.parametrize(
    ("windows", "kv_heads", "new"),
    [((None, 5, 5, 5), 4, 1), ((None, 9, None, 9), 4, 1), ((5, 5), 2, 1), ((None,) * 3, 3, 2), ((None, 3, 7, 7), 2, 3)],
)
@pytest.mark.parametrize("programs", [pytest.param(1, marks=pytest.mark.slow), 6])
@pytest.mark.every(3)
def test_heads_at_equal_distances_need_no_table_and_give_equal_bits_with_one(windows, kv_heads, new, programs, tables):
    shape = DecodeShape(16, 4, 1, programs)
    step = Step(windows=windows, kv_heads=kv_heads, held=90, new=new, rollback=new, batch=2, capacity=100, shape=shape)
    check(step, "triton")
    without = run(step, "triton")
    tables.forced = True
    with_table = run(step, "triton")
    assert tables == [False, False, True]
    for mine, theirs in zip(without, with_table, strict=True):
        torch.testing.assert_close(mine, theirs, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("windows", [(None, 5, 9), (None, 5, None, None, 5, 5), (None, 7, 7, 5, 7)])
def test_heads_in_no_such_order_are_read_from_a_table(windows, tables):
    check(Step(windows=windows, held=90, batch=2), "triton")
    assert tables == [True]


@pytest.mark.parametrize("max_length", [100, 300])  # one tile, and several
def test_a_static_cache_of_global_and_local_heads_needs_no_table(max_length, tables):
    plan = HeadPlan.long_short(n_heads=6, n_global=2, window=8)
    (layer,) = LSStaticCache([plan], head_dim=16, batch_size=2, max_length=max_length).layers
    x = torch.randn(2, 6, 1, 16)
    layer.attend(x, x, x, backend="triton")
    assert tables == [False]


def test_tiles_are_asked_for_in_advance_on_cuda_alone():
    step = Step(windows=(None, 5), held=90)
    plain, fetched = (run(replace(step, shape=DecodeShape(16, 4, 1, 4.0, fetch=fetch)), "triton") for fetch in (0, 2))
    assert torch.equal(plain[0], fetched[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("batch", "new"), [(0, 1), (1, 0)], ids=["no rows", "no tokens"])
def test_an_empty_step_gives_empty_results(batch, new, backend):
    out, logits, *_ = run(Step(windows=(None, 3), held=5, batch=batch, new=new), backend)
    assert out.shape == (batch, 2, new, 16)
    assert logits.max.tolist() == [-torch.inf] * 2 and logits.min.tolist() == [torch.inf] * 2


@pytest.mark.parametrize("extremes", [0, 1, 2])
@pytest.mark.parametrize("name", ["plain_decode", "triton_decode"])
def test_the_op_keeps_the_rules_of_torch_library(name, extremes):
    step = Step(windows=(None, 5), held=30, dim=16)
    q, k, v, _ = step.draw()
    layout, _ = step.layout()
    keys, values = (step.filled(x[:, :, :30]).nan_to_num() for x in (k, v))
    tickets = torch.zeros(2, dtype=torch.int32)
    args = (q, k[:, :, 30:], v[:, :, 30:], keys, values, torch.tensor([30]), None, tickets)
    args = (*args, [n for head in layout for n in head], *Options.of(step.plan), extremes)
    torch.library.opcheck(getattr(torch.ops.longshort, name).default, args)
