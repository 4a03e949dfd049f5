"""The Triton kernels against the reference, run by Triton's interpreter where there is no GPU."""

import pytest
import torch
from hypothesis import given, settings

from longshort import HeadPlan, attention

from .cases import Case, assert_close, assert_no_worse_than_rounding, cases, run, run_in_rounding

pytest.importorskip("triton", reason="the package triton is not installed")

MIXED = HeadPlan(windows=(None, 7, 33), slopes=(0.1, 0.0, 0.02))
OPTIONS = {
    "plain": {},
    "grouped": {"kv_heads": 1},
    "more keys": {"n_keys": 141},
    "softcap": {"softcap": 4.0},
    "two-sided": {"causal": False},
    "segments": {"segments": "shuffled"},
    "padding": {"segments": "negatives"},
    "strided": {"layout": "fused qkv"},
    "decays": {"plan": HeadPlan(windows=(None, 7, 33), decays=(0.01, 0.0, 0.2))},
}


def check(case):
    if case.dtype == torch.float32:
        assert_close(run(case, "triton"), run(case, "reference", torch.float64), 5e-5)
    else:
        assert_no_worse_than_rounding(run(case, "triton"), run(case, "reference", torch.float64), run_in_rounding(case))


@settings(max_examples=25)
@given(cases(dtypes=(torch.float32,)))
def test_call_agrees_with_the_reference_in_fp32(case):
    check(case)


# The interpreter's bf16 is not that of a GPU: half precision is fp16 here.
@settings(max_examples=15)
@given(cases(dtypes=(torch.float16,)))
def test_fp16_call_errs_at_most_twice_as_much_as_its_rounding(case):
    check(case)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_agrees_with_the_reference(name):
    base = {"n_queries": 101, "n_keys": 101, "kv_heads": 3, "dim": 16, "plan": MIXED, "poison": True}
    check(Case(**base | OPTIONS[name]))


@pytest.mark.parametrize("dim", [16, 32, 64, 96, 128, 40])
def test_head_dims_agree_with_the_reference(dim):
    check(Case(n_queries=70, n_keys=70, kv_heads=2, dim=dim, plan=HeadPlan(windows=(None, 20))))


def test_nan_stays_visible_in_its_head_alone():
    q, k, v = torch.randn(3, 1, 2, 80, 16).unbind()
    k[0, 1, 30] = torch.nan
    result = attention(q, k, v, HeadPlan(windows=(None, 5)), stats=True, backend="triton")
    assert result.out[0, 1, 30:35].isnan().all() and result.lse[0, 1, 30:35].isnan().all()
    assert result.logits.max[1].isnan() and result.logits.min[1].isnan()
    assert result.out[0, 0].isfinite().all() and result.logits.abs_max[0].isfinite()


def test_two_runs_give_equal_bits():
    case = Case(n_queries=130, n_keys=130, kv_heads=1, plan=MIXED, dim=16)
    first, second = run(case, "triton"), run(case, "triton")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.named(), second.named(), strict=True))


def test_operator_passes_torchs_own_checks():
    q, k, v = (torch.randn(1, 2, 20, 16, requires_grad=True) for _ in range(3))
    options = ([0, 5], None, None, None, True, None, None, True)
    torch.library.opcheck(torch.ops.longshort.triton_forward.default, (q, k, v, *options))


REFUSALS = {
    "it needs a CUDA GPU, and q is on cpu": {"interpret": "0"},
    "q is float64": {"dtype": torch.float64},
    "its head dim is at most 256, and q has 300": {"dim": 300},
}


@pytest.mark.parametrize("why", REFUSALS)
def test_call_that_it_cannot_serve_is_refused_with_the_reason(why, monkeypatch):
    setting = {"interpret": "1", "dtype": torch.float32, "dim": 8} | REFUSALS[why]
    monkeypatch.setenv("TRITON_INTERPRET", setting["interpret"])
    q = torch.randn(1, 1, 4, setting["dim"], dtype=setting["dtype"])
    with pytest.raises(ValueError, match=f'backend="triton" cannot serve this call: .*{why}'):
        attention(q, q, q, HeadPlan.full(1), backend="triton")
