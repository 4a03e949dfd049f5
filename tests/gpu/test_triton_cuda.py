"""The Triton kernels on a GPU against the float64 reference: every option, dtype, head dim and kind of plan.

Flags, dtypes, head dims and tile counts are compiled in, at seconds a kernel; so is whether a size is 1 or a multiple
of 16. Cases therefore share heads, windows and odd lengths where they can.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort import HeadPlan, attention

from ..ops.cases import (
    HALF,
    LAYOUTS,
    SEGMENTS,
    Case,
    assert_close,
    assert_no_worse_than_rounding,
    assert_statistics_change_no_bit,
    run,
    run_in_rounding,
)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONG_SHORT = HeadPlan.long_short(n_heads=4, n_global=1, window=50)
DECAYS, SLOPES = (0.001, 0.0, 0.1, 0.5), (0.01, 0.3, 0.0, 2.0)


def biased(plan, *, decays=False, slopes=False):
    return HeadPlan(windows=plan.windows, decays=DECAYS if decays else None, slopes=SLOPES if slopes else None)


EVERYTHING = {
    "plan": biased(LONG_SHORT, decays=True, slopes=True),
    "softcap": 5.0,
    "segments": "negatives",
    "kv_heads": 2,
    "n_keys": 341,
    "layout": "fused qkv",
}
OPTIONS = {
    "plain": {},
    "whole tiles": {"n_queries": 256, "n_keys": 256},
    "grouped queries": {"kv_heads": 2},
    "more keys than queries": {"n_keys": 341},
    "one query": {"n_queries": 1},
    "fused projection": {"layout": "fused qkv"},
    "positions first": {"layout": "positions first"},
    "every other element": {"layout": "every other element"},
    "negative scale": {"scale": -0.2},
    "zero scale": {"scale": 0.0},
    "softcap": {"softcap": 5.0},
    "two-sided": {"causal": False},
    "two-sided, more keys than queries": {"causal": False, "n_keys": 341},
    "sorted segments": {"segments": "sorted"},
    "long rows of sorted segments": {"segments": "sorted", "n_queries": 1401, "n_keys": 1501},
    "long two-sided rows of sorted segments": {
        "segments": "sorted",
        "n_queries": 1501,
        "n_keys": 1501,
        "causal": False,
    },
    "more blocks of segments than one look takes": {"segments": "sorted", "n_queries": 70, "n_keys": 9001},
    "shuffled segments": {"segments": "shuffled"},
    "padding": {"segments": "negatives"},
    "left padding": {"segments": "left padding"},
    "one row all padding": {"segments": "one row all padding"},
    "all padding": {"segments": "all padding"},
    "slopes": {"plan": biased(LONG_SHORT, slopes=True)},
    "decays": {"plan": biased(LONG_SHORT, decays=True)},
    "everything": EVERYTHING,
    "everything two-sided": EVERYTHING | {"causal": False},
}
HEAD_DIMS = [(dim, dtype) for dim in (16, 32, 40, 96, 128) for dtype in DTYPES] + [(256, torch.bfloat16)]


def case_on_gpu(**fields):
    shape = {"n_queries": 301, "n_keys": 301, "kv_heads": 4, "dim": 64}
    return Case(**shape | {"plan": LONG_SHORT, "device": "cuda"} | fields)


def check(case, got=None):
    """Every result within what its dtype allows; lse and statistics are fp32, whatever the inputs."""
    got = run(case, "triton") if got is None else got
    case = replace(case, poison=False)  # poisoning asks torch for deterministic matmuls, which the reference lacks
    exact = run(case, "reference", torch.float64)
    if case.dtype not in HALF:
        assert_close(got, exact, 5e-5)
        return
    assert_no_worse_than_rounding(got, exact, run_in_rounding(case))
    for name, tolerance in (("lse", 1e-3), ("stats.max", 1e-4), ("stats.min", 1e-4)):
        value, want = dict(got.named())[name].double(), dict(exact.named())[name].double()
        torch.testing.assert_close(value, want, rtol=tolerance, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


FLAGS = {
    "plain": {},
    "everything": {"softcap": 5.0, "slopes": True, "decays": True, "segmented": True},
    "softcap and slopes": {"softcap": 5.0, "slopes": True},
    "two-sided segments": {"causal": False, "segmented": True},
}
FLAGS_BY_DTYPE = [(name, torch.bfloat16) for name in FLAGS] + [(name, torch.float32) for name in list(FLAGS)[:2]]


@st.composite
def calls(draw):
    """A call without flags; these are compiled in, and so are the tile counts of a plan: each test has few of them."""
    n_queries = draw(st.sampled_from([3, 17, 49, 63, 65, 127, 129, 255, 301, 513, 699]))
    windows, kv_heads = draw(
        st.sampled_from(
            [((None, 50, 50, 50), 2), ((None, 1, 2, 7), 4), ((None, 63, 64, 65), 4), ((None, 128, 200, 500), 2)]
        )
    )
    return case_on_gpu(
        n_queries=n_queries,
        n_keys=n_queries + draw(st.sampled_from([0, 0, 0, 2, 16, 64, 130, 200])),
        batch=draw(st.sampled_from([2, 3])),
        kv_heads=kv_heads,
        plan=HeadPlan(windows=tuple(draw(st.permutations(windows)))),
        scale=draw(st.sampled_from([None, None, -0.2])),
        layout=draw(st.sampled_from(LAYOUTS)),
        poison=draw(st.booleans()),
        segments=draw(st.sampled_from(SEGMENTS)),
        seed=draw(st.integers(0, 999)),
    )


@pytest.mark.parametrize(("flags", "dtype"), FLAGS_BY_DTYPE, ids=str)
@settings(max_examples=16)
@given(case=calls())
def test_any_call_agrees_with_the_reference(case, flags, dtype):
    chosen = {"segmented": False, "decays": False, "slopes": False} | FLAGS[flags]
    plan = biased(case.plan, decays=chosen.pop("decays"), slopes=chosen.pop("slopes"))
    segments = case.segments if chosen.pop("segmented") else None
    check(replace(case, plan=plan, segments=segments, dtype=dtype, **chosen))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_agrees_with_the_reference(name, dtype):
    check(case_on_gpu(dtype=dtype, **OPTIONS[name]))


@pytest.mark.parametrize(("dim", "dtype"), HEAD_DIMS, ids=str)
@pytest.mark.parametrize("name", ["plain", "everything"])
def test_each_head_dim_agrees_with_the_reference(name, dim, dtype):
    check(case_on_gpu(dim=dim, dtype=dtype, **OPTIONS[name]))


MANY = (1, 5, 64, 100, 129, 300, 1000, None)
PLANS = {
    "all local": ((50,) * 4, 4),
    "all global": ((None,) * 4, 4),
    "windows of one key": ((1,) * 4, 4),
    "windows around the length": ((1100, 1101, 1102, 5000), 4),
    "windows beyond 32 bits": ((2**31 - 1, 2**31, 2**32, 10**12), 4),
    "a window for each head": (MANY, 8),
    "a window for each head, grouped queries": (MANY, 2),
    "a window for each head, one key head": (MANY, 1),
    "local heads first": ((7, 64, 200, None), 4),
}


@pytest.mark.parametrize("name", PLANS)
def test_each_plan_agrees_with_the_reference(name):
    windows, kv_heads = PLANS[name]
    shape = {"n_queries": 1101, "n_keys": 1101, "kv_heads": kv_heads}
    check(case_on_gpu(plan=HeadPlan(windows=windows), dtype=torch.bfloat16, **shape))


def test_more_rows_times_heads_than_a_grid_has_in_its_second_dimension_agree_with_the_reference():
    check(case_on_gpu(batch=16_400, n_queries=3, n_keys=3, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["plain", "whole tiles", "one query", "two-sided", "padding", "everything"])
def test_memory_that_was_allocated_and_not_written_reaches_no_result(name, dtype):
    case = case_on_gpu(dtype=dtype, poison=True, **OPTIONS[name])
    check(case, got=run(case, "triton"))


@pytest.fixture(params=["allow_tf32", "fp32_precision", "set_float32_matmul_precision"])
def allow_tf32(request, monkeypatch):
    """A function that allows it, until the end of the test, in one of torch's three ways."""

    def allow():
        match request.param:
            case "allow_tf32":
                monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
            case "fp32_precision":
                monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
            case "set_float32_matmul_precision":
                torch.set_float32_matmul_precision("high")

    yield allow
    if request.param == "set_float32_matmul_precision":
        torch.set_float32_matmul_precision("highest")


def test_fp32_is_full_precision_unless_tf32_is_allowed(allow_tf32):
    case = case_on_gpu()
    exact = run(case, "reference", torch.float64)
    assert_close(run(case, "triton"), exact, 5e-5)
    allow_tf32()
    rounded = run(case, "triton")
    assert_close(rounded, exact, 1e-2)
    assert (rounded.result.out - exact.result.out).abs().max() > 1e-4


@pytest.mark.parametrize("head", [0, 2], ids=["global head", "local head"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_nan_in_a_key_shows_in_the_rows_that_see_it_and_nowhere_else(head, dtype):
    q, k, v = torch.randn(3, 2, 4, 301, 64, device="cuda", dtype=dtype).unbind()
    k[1, head, 100, 3] = torch.nan
    result = attention(q, k, v, LONG_SHORT, stats=True, backend="triton")
    seeing = torch.zeros(2, 4, 301, dtype=torch.bool, device="cuda")
    seeing[1, head, 100 : 301 if head == 0 else 150] = True
    assert torch.equal(result.out.isnan(), seeing[..., None].expand(-1, -1, -1, 64))
    assert torch.equal(result.lse.isnan(), seeing)
    largest = attention(q, k, v, LONG_SHORT, stats="max", backend="triton").stats.max
    for extreme in (*result.stats, largest):
        assert extreme.isnan().tolist() == [h == head for h in range(4)]


def test_nan_in_padding_shows_nowhere():
    q, k, v = (torch.randn(2, 4, 301, 64, device="cuda", requires_grad=True) for _ in range(3))
    segments = torch.zeros(2, 301, dtype=torch.int64, device="cuda")
    segments[1, 90:110] = -1
    with torch.no_grad():
        for x in (q, k, v):
            x[1, :, 100] = torch.nan
    result = attention(q, k, v, LONG_SHORT, segments=segments, stats=True, backend="triton")
    grads = torch.autograd.grad(result.out.square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (result.out, *result.stats, *grads))
    assert torch.equal(result.lse == -torch.inf, (segments < 0)[:, None].expand(-1, 4, -1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["plain", "negative scale", "two-sided", "padding", "decays", "everything"])
def test_statistics_of_either_kind_change_no_bit(name, dtype):
    assert_statistics_change_no_bit(case_on_gpu(dtype=dtype, **OPTIONS[name]), "triton")


@pytest.mark.parametrize("dim", [32, 64, 128])
def test_statistics_of_either_kind_change_no_bit_of_a_long_head_in_parts(dim):
    case = case_on_gpu(n_queries=8191, n_keys=8191, dim=dim, batch=1, dtype=torch.bfloat16)
    assert_statistics_change_no_bit(case, "triton")


DETERMINISTIC = {
    "long": {"n_queries": 8191, "n_keys": 8191},
    "grouped queries": {"n_queries": 1025, "n_keys": 1025, "kv_heads": 2},
    "everything": OPTIONS["everything"],
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_runs_give_equal_bits(name, dtype):
    case = case_on_gpu(dtype=dtype, **DETERMINISTIC[name])
    first = dict(run(case, "triton").named())
    for _ in range(4):
        assert [part for part, value in run(case, "triton").named() if not torch.equal(value, first[part])] == []


@pytest.mark.parametrize(("batch", "n_queries", "n_keys"), [(0, 301, 301), (2, 0, 301), (2, 0, 0)])
def test_empty_call_gives_empty_results(batch, n_queries, n_keys):
    check(case_on_gpu(batch=batch, n_queries=n_queries, n_keys=n_keys))
