"""The blocked backend on CUDA against the float64 reference."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from longshort import HeadPlan, attention

from ..ops.cases import HALF, Case, assert_close, assert_no_worse_than_rounding, cases, run, run_in_rounding

LONG_SHORT = HeadPlan.long_short(n_heads=6, n_global=1, window=50)
FIXED = {
    "one global head among several in a batch": Case(
        batch=2, kv_heads=6, n_queries=515, n_keys=515, dim=32, plan=LONG_SHORT
    ),
    "all global": Case(batch=2, kv_heads=4, n_queries=300, n_keys=300, dim=64, plan=HeadPlan.full(4)),
    "keys before the queries": Case(batch=2, kv_heads=6, n_queries=130, n_keys=515, dim=32, plan=LONG_SHORT),
    "grouped queries": Case(batch=2, kv_heads=2, n_queries=515, n_keys=515, dim=32, plan=LONG_SHORT),
    "fused projection": Case(
        batch=2, kv_heads=2, n_queries=515, n_keys=515, dim=32, plan=LONG_SHORT, layout="fused qkv"
    ),
    "every other element": Case(
        batch=2, kv_heads=6, n_queries=100, n_keys=120, dim=32, plan=LONG_SHORT, layout="every other element"
    ),
    "two-sided": Case(batch=2, kv_heads=6, n_queries=200, n_keys=300, dim=32, plan=LONG_SHORT, causal=False),
    "segments": Case(batch=2, kv_heads=6, n_queries=300, n_keys=301, dim=32, plan=LONG_SHORT, segments="negatives"),
    "softcap and slopes": Case(
        batch=2, kv_heads=6, n_queries=300, n_keys=301, dim=32, plan=LONG_SHORT.with_alibi(), softcap=20.0
    ),
    "negative scale": Case(batch=2, kv_heads=6, n_queries=100, n_keys=120, dim=32, plan=LONG_SHORT, scale=-0.2),
    "odd head dim": Case(batch=2, kv_heads=6, n_queries=100, n_keys=100, dim=5, plan=LONG_SHORT),
}


def check(case):
    case = replace(case, device="cuda")
    exact, got = run(case, "reference", torch.float64), run(case, "blocked")
    if case.dtype in HALF:
        assert_no_worse_than_rounding(got, exact, run_in_rounding(case))
    else:
        assert_close(got, exact, 5e-5 if case.dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALF])
@pytest.mark.parametrize("name", FIXED)
def test_call_agrees_with_the_reference(name, dtype):
    check(replace(FIXED[name], dtype=dtype))


@settings(max_examples=80)
@given(cases(dtypes=(torch.float32,), poison=False))
def test_any_call_agrees_with_the_reference_in_fp32(case):
    check(case)


@settings(max_examples=80)
@given(cases(dtypes=HALF, poison=False))
def test_any_half_precision_call_errs_at_most_twice_as_much_as_its_rounding(case):
    check(case)


@pytest.mark.parametrize("dtype", HALF)
def test_autocast_takes_fp32_queries_and_keys_beside_half_precision_values(dtype):
    q, k = (torch.randn(2, 6, 200, 32, device="cuda", requires_grad=True) for _ in range(2))
    v = torch.randn(2, 6, 200, 32, device="cuda", dtype=dtype, requires_grad=True)
    with torch.autocast("cuda", dtype=dtype):
        result = attention(q, k, v, LONG_SHORT, stats=True, backend="blocked")
    assert result.out.dtype == dtype and result.lse.dtype == torch.float32
    result.out.float().sum().backward()
    assert [x.grad.dtype for x in (q, k, v)] == [torch.float32, torch.float32, dtype]


def test_two_runs_give_equal_bits():
    case = replace(FIXED["grouped queries"], device="cuda", dtype=torch.bfloat16)
    first, second = run(case, "blocked"), run(case, "blocked")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.named(), second.named(), strict=True))


def test_nan_in_a_key_shows_in_its_head_alone():
    q, k, v = torch.randn(3, 2, 6, 200, 32, device="cuda", dtype=torch.bfloat16).unbind()
    k[1, 0, 40, 0] = torch.nan
    result = attention(q, k, v, LONG_SHORT, stats=True, backend="blocked")
    for nan in (result.out.isnan().any(-1), result.lse.isnan()):
        assert nan[1, 0, 40:].all()
        assert not nan[0].any() and not nan[1, 1:].any()
    assert result.stats.max.isnan().tolist() == [True] + [False] * 5


def test_compiled_call_without_graph_breaks_equals_eager():
    def step(q, k, v):
        result = attention(q, k, v, LONG_SHORT, stats=True, backend="blocked")
        return result.out, result.lse, result.stats.abs_max

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for length in (40, 200, 515):
        q, k, v = (torch.randn(2, 6, length, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        q.requires_grad_()
        for a, b in zip(compiled(q, k, v), step(q, k, v), strict=True):
            torch.testing.assert_close(a, b)
        torch.testing.assert_close(
            *(torch.autograd.grad(f(q, k, v)[0].float().square().sum(), q)[0] for f in (compiled, step))
        )
