"""The Triton kernels against the reference, run by Triton's interpreter where there is no GPU."""

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings

from longshort import HeadPlan, attention

from ..cases import (
    Case,
    assert_close,
    assert_no_worse_than_rounding,
    assert_statistics_change_no_bit,
    cases,
    made_affordable,
    run,
    run_in_rounding,
)

pytest.importorskip("triton", reason="the package triton is not installed")
from longshort.ops.options import GLOBAL
from longshort.ops.triton import segment_ranges
from longshort.ops.triton.tiles import KERNELS, TileShape, use

MIXED = HeadPlan(windows=(None, 7, 33), slopes=(0.1, 0.0, 0.02))
OPTIONS = {
    "plain": {},
    "grouped": {"kv_heads": 1},
    "more keys": {"n_keys": 141},
    "softcap": {"softcap": 4.0},
    "two-sided": {"causal": False},
    "segments": {"segments": "shuffled", "batch": 2},
    "padding": {"segments": "negatives"},
    "strided": {"layout": "fused qkv", "batch": 2},
    "decays": {"plan": HeadPlan(windows=(None, 7, 33), decays=(0.01, 0.0, 0.2))},
}


def check(case):
    if case.dtype == torch.float32:
        assert_close(run(case, "triton"), run(case, "reference", torch.float64), 5e-5)
    else:
        assert_no_worse_than_rounding(run(case, "triton"), run(case, "reference", torch.float64), run_in_rounding(case))


@settings(max_examples=10)
@given(cases(dtypes=(torch.float32,), causal=True).map(made_affordable))
@pytest.mark.slow
def test_causal_call_agrees_with_the_reference_in_fp32(case):
    check(case)


@pytest.mark.slow
@settings(max_examples=10)
@given(cases(dtypes=(torch.float32,), causal=False).map(made_affordable))
def test_two_sided_call_agrees_with_the_reference_in_fp32(case):
    check(case)


@pytest.mark.slow
# The interpreter's bf16 is not that of a GPU: half precision is fp16 here.
@settings(max_examples=10)
@given(cases(dtypes=(torch.float16,)).map(made_affordable))
def test_fp16_call_errs_at_most_twice_as_much_as_its_rounding(case):
    check(case)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.every(2)
def test_each_option_agrees_with_the_reference(name):
    base = {"batch": 1, "n_queries": 101, "n_keys": 101, "kv_heads": 3, "dim": 16, "plan": MIXED, "poison": True}
    check(Case(**base | OPTIONS[name]))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.every(2)
def test_statistics_of_either_kind_change_no_bit(name):
    base = {"batch": 1, "n_queries": 70, "n_keys": 70, "kv_heads": 3, "dim": 16, "poison": True}
    assert_statistics_change_no_bit(Case(**base | {"plan": HeadPlan(windows=(None, 7, 33))} | OPTIONS[name]), "triton")


@pytest.mark.parametrize("slopes", [None, (0.1,)], ids=["plain", "slopes"])
def test_statistics_of_either_kind_change_no_bit_where_walks_are_cut(slopes):
    plan = HeadPlan(windows=(None,), slopes=slopes)
    case = Case(batch=1, n_queries=70, n_keys=70, kv_heads=1, dim=16, plan=plan, poison=True)
    with use({name: TileShape(32, 16, 1, 4, parts=3) for name in KERNELS}):
        assert_statistics_change_no_bit(case, "triton")
        check(case)


@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128, 40])
@pytest.mark.every(2)
def test_head_dims_agree_with_the_reference(dim):
    check(Case(batch=1, n_queries=70, n_keys=70, kv_heads=2, dim=dim, plan=HeadPlan(windows=(None, 20))))


def check_plan(*windows, n_queries, n_keys=None, kv_heads=None, batch=1, **fields):
    """One row of poisoned memory, small heads: what is left is how tiles meet windows and lengths."""
    fields |= {"n_queries": n_queries, "n_keys": n_keys or n_queries, "kv_heads": kv_heads or len(windows)}
    check(Case(batch=batch, dim=16, plan=HeadPlan(windows=windows), poison=True, **fields))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 63, 64, 65, 130, 300])
@pytest.mark.every(3)
def test_window_of_any_size_agrees_with_the_reference(window):
    check_plan(window, n_queries=200)


@pytest.mark.parametrize("window", [1, 16, 64, 65])
@pytest.mark.every(2)
def test_two_sided_window_of_any_size_agrees_with_the_reference(window):
    check_plan(window, n_queries=150, causal=False)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
def test_window_beyond_32_bits_is_global(causal):
    check_plan(2**31 - 1, 2**31, 2**32, 10**12, n_queries=70, causal=causal)


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 200])
@pytest.mark.every(3)
def test_length_around_a_tile_agrees_with_the_reference(length):
    check_plan(None, 20, n_queries=length)


@pytest.mark.parametrize(
    "kv_heads",
    [
        pytest.param(6, id="own keys", marks=pytest.mark.slow),
        pytest.param(2, id="grouped queries"),
        pytest.param(1, id="one key head", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_many_windows_in_one_plan_agree_with_the_reference(kv_heads):
    check_plan(1, 64, 17, None, 129, 300, n_queries=131, kv_heads=kv_heads)


@pytest.mark.parametrize("windows", [(7, 7), (None, None), (1, 1)], ids=["all local", "all global", "one key each"])
@pytest.mark.every(2)
def test_plan_of_one_kind_agrees_with_the_reference(windows):
    check_plan(*windows, n_queries=130)


def test_grouped_queries_of_mixed_windows_with_past_keys_agree_with_the_reference():
    check_plan(None, 7, 33, 1, 64, 200, n_queries=100, n_keys=150, kv_heads=2)


def test_two_sided_call_with_past_keys_agrees_with_the_reference():
    check_plan(None, 7, 65, 300, n_queries=70, n_keys=170, causal=False)


@pytest.mark.parametrize("scale", [-0.7, 0.0])
def test_scale_that_is_not_positive_agrees_with_the_reference(scale):
    check_plan(None, 20, n_queries=100, scale=scale)


@pytest.fixture
def small_blocks(monkeypatch):
    """Short rows have several blocks of segments, and every walk is shortened."""
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the size of the blocks")
    for name in ("BLOCK", "SHORT"):
        monkeypatch.setattr(segment_ranges, name, type(segment_ranges.BLOCK)(16))


_QUICK = [("sorted", True)]
_SEGMENTS = itertools.product(["sorted", "shuffled", "negatives", "left padding", "one row all padding"], [True, False])
_OTHER_SEGMENTS = [pytest.param(*case, marks=() if case in _QUICK else pytest.mark.slow) for case in _SEGMENTS]


@pytest.mark.parametrize(("segments", "causal"), _OTHER_SEGMENTS)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.slow
def test_walks_that_pass_over_other_segments_agree_with_the_reference(segments, causal):
    shapes = {name: TileShape(32, 16, 1, 4, parts=2) for name in KERNELS}
    with use(shapes):
        check_plan(None, 20, n_queries=70, n_keys=100, batch=2, segments=segments, causal=causal, kv_heads=1)


@pytest.mark.parametrize("n_queries", [16, 2200])
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.every(2)
def test_walks_over_more_blocks_than_one_look_takes_agree_with_the_reference(n_queries):
    q, k, v = torch.randn(1, 1, n_queries, 16), *torch.randn(2, 1, 1, 2200, 16)
    segments = torch.arange(2200)[None] // 300
    segments[:, -8:] = 0  # the last queries see the first keys
    with use({"forward": TileShape(128, 128, 1, 4, parts=1)}):
        got, want = (
            attention(q, k, v, HeadPlan.full(1), segments=segments, causal=False, backend=backend).out
            for backend in ("triton", "reference")
        )
    torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("causal", [True, False])
def test_tiles_of_other_documents_are_not_even_read(causal):
    q, k, v = torch.randn(3, 1, 1, 192, 16).unbind()
    v[:, :, :64] = torch.nan  # 0 times NaN would be NaN
    documents = torch.arange(192)[None] // 64
    out = attention(q, k, v, HeadPlan.full(1), segments=documents, causal=causal, backend="triton").out
    assert out[:, :, :64].isnan().all() and out[:, :, 64:].isfinite().all()


@pytest.mark.parametrize("segments", ["left padding", "one row all padding", "all padding"])
@pytest.mark.every(3)
def test_padded_rows_agree_with_the_reference(segments):
    check_plan(None, 20, n_queries=70, n_keys=100, batch=2, segments=segments)


def test_one_query_of_many_keys_agrees_with_the_reference():
    check_plan(None, 1, 70, n_queries=1, n_keys=200)


@pytest.mark.parametrize(("batch", "n_queries", "n_keys"), [(0, 5, 5), (0, 3, 5), (2, 0, 5), (2, 0, 0), (0, 0, 0)])
def test_empty_call_gives_empty_results(batch, n_queries, n_keys):
    q = torch.randn(batch, 2, n_queries, 16, requires_grad=True)
    k, v = (torch.randn(batch, 1, n_keys, 16, requires_grad=True) for _ in range(2))
    result = attention(q, k, v, HeadPlan(windows=(None, 3)), stats=True, backend="triton")
    assert (result.out.shape, result.lse.shape) == (q.shape, q.shape[:3])
    assert result.stats.max.tolist() == [-torch.inf] * 2 and result.stats.min.tolist() == [torch.inf] * 2
    largest = attention(q, k, v, HeadPlan(windows=(None, 3)), stats="max", backend="triton").stats
    assert largest.max.tolist() == [-torch.inf] * 2 and largest.min is None
    for x, grad in zip((q, k, v), torch.autograd.grad(result.out.sum(), (q, k, v)), strict=True):
        assert grad.shape == x.shape and not grad.any()


def test_nan_stays_visible_in_its_head_alone():
    q, k, v = torch.randn(3, 1, 2, 80, 16).unbind()
    k[0, 1, 30] = torch.nan
    result = attention(q, k, v, HeadPlan(windows=(None, 5)), stats=True, backend="triton")
    assert result.out[0, 1, 30:35].isnan().all() and result.lse[0, 1, 30:35].isnan().all()
    assert result.stats.max[1].isnan() and result.stats.min[1].isnan()
    assert result.out[0, 0].isfinite().all() and result.stats.abs_max[0].isfinite()
    largest = attention(q, k, v, HeadPlan(windows=(None, 5)), stats="max", backend="triton").stats.max
    assert largest.isnan().tolist() == [False, True]


def test_two_runs_give_equal_bits():
    case = Case(batch=1, n_queries=130, n_keys=130, kv_heads=1, plan=MIXED, dim=16)
    first, second = run(case, "triton"), run(case, "triton")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.named(), second.named(), strict=True))


@pytest.mark.parametrize("extremes", [0, 1, 2])
def test_operator_passes_torchs_own_checks(extremes):
    q, k, v = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(3))
    options = ([GLOBAL, 5], None, None, None, True, None, [0, 3], None, extremes)
    torch.library.opcheck(torch.ops.longshort.triton_forward.default, (q, k, v, *options))


REFUSALS = {
    "it needs a CUDA GPU, and q is on cpu": {"interpret": "0"},
    "q is float64": {"dtype": torch.float64},
    "its head dim must be at most 256, and q has 300": {"dim": 300},
}


@pytest.mark.parametrize("why", REFUSALS)
def test_call_that_it_cannot_serve_is_refused_with_the_reason(why, monkeypatch):
    setting = {"interpret": "1", "dtype": torch.float32, "dim": 8} | REFUSALS[why]
    monkeypatch.setenv("TRITON_INTERPRET", setting["interpret"])
    q = torch.randn(1, 1, 4, setting["dim"], dtype=setting["dtype"])
    with pytest.raises(ValueError, match=f'backend="triton" cannot serve this call: .*{why}'):
        attention(q, q, q, HeadPlan.full(1), backend="triton")


HEAVY = ("triton", "transformers", "tokenizers", "altair", "typer", "longshort.ops.triton")


def test_kernels_and_other_heavy_modules_are_loaded_by_the_first_call_and_no_sooner():
    code = f"""
import os, sys, torch

def heavy():
    names = {{name for name in sys.modules if name.split(".")[0] in {HEAVY!r} or name in {HEAVY!r}}}
    return sorted(names - before)

before = set()
before = set(heavy())  # torch itself may load some of them
import longshort
q = torch.zeros(1, 1, 4, 16)
plan = longshort.HeadPlan.full(1)
longshort.attention(q, q, q, plan)
print(heavy())
os.environ["TRITON_INTERPRET"] = "1"
longshort.attention(q, q, q, plan, backend="triton")
print("longshort.ops.triton" in heavy())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
