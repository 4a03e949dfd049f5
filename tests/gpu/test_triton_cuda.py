"""The Triton kernels on a GPU: the interpreter's cases again, in bf16 too, and under compile."""

import pytest
import torch

from longshort import HeadPlan, attention

from ..ops.cases import Case, assert_close, assert_no_worse_than_rounding, run, run_in_rounding
from ..ops.test_triton import MIXED, OPTIONS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_agrees_with_the_reference(name, dtype):
    base = {"n_queries": 301, "n_keys": 301, "kv_heads": 3, "dim": 32, "plan": MIXED, "device": "cuda", "dtype": dtype}
    case = Case(**base | OPTIONS[name] | ({"n_keys": 341} if name == "more keys" else {}))
    exact = run(case, "reference", torch.float64)
    if dtype == torch.float32:
        assert_close(run(case, "triton"), exact, 5e-5)
    else:
        assert_no_worse_than_rounding(run(case, "triton"), exact, run_in_rounding(case))


def test_two_runs_give_equal_bits():
    case = Case(n_queries=1025, n_keys=1025, kv_heads=1, plan=MIXED, dim=64, dtype=torch.bfloat16, device="cuda")
    first, second = run(case, "triton"), run(case, "triton")
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first.named(), second.named(), strict=True))


def test_compiled_call_equals_eager():
    plan = HeadPlan.long_short(n_heads=4, n_global=1, window=50)
    q, k, v = torch.randn(3, 2, 4, 300, 64, device="cuda", dtype=torch.bfloat16).unbind()

    def call(q, k, v):
        return attention(q, k, v, plan, stats=True, backend="triton").out

    torch.testing.assert_close(torch.compile(call, fullgraph=True)(q, k, v), call(q, k, v))
