"""ALiBi's slopes in the mask of PyTorch's flash attention: the numbers of the reference, however steep and long."""

from dataclasses import replace

import pytest
import torch

from longshort import HeadPlan

from .cases import Case, assert_close, run

SHORT = Case(
    kv_heads=2,
    n_queries=75,
    n_keys=75,
    plan=HeadPlan(windows=(None, None, None, 9), slopes=(0.3, 0.0, 2.0, 0.5)),
    dtype=torch.float64,
    tile_parts=1,
)
LONG = Case(
    batch=1, kv_heads=3, n_queries=1103, n_keys=1103, plan=HeadPlan(windows=(None,) * 3, slopes=(0.5, 8, 0.004))
)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("past", [0, 13, 400])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("segments", [None, "negatives", "left padding"])
def test_sloped_rows_are_those_of_the_reference(causal, past, parts, segments, engines):
    case = replace(SHORT, causal=causal, n_keys=75 + past, tile_parts=parts, segments=segments)
    assert_close(run(case, "blocked"), run(case, "reference"), 1e-11)
    assert set(engines) == {"_fused_forward"}


@pytest.mark.parametrize("causal", [True, False])
def test_long_and_steep_rows_keep_the_digits_of_fp32(causal):
    case = replace(LONG, causal=causal)
    assert_close(run(case, "blocked"), run(case, "reference", torch.float64), 3e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_slopes_may_be_so_large_that_only_the_query_itself_is_seen(causal):
    case = replace(SHORT, dtype=torch.float32, causal=causal, plan=replace(SHORT.plan, slopes=(1e30, 1e20, 1e4, 1e30)))
    assert_close(run(case, "blocked"), run(case, "reference", torch.float64), 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype, engines):
    case = replace(SHORT, dtype=dtype)
    got, exact = run(case, "blocked"), run(case, "reference", torch.float64)
    assert got.result.out.dtype == dtype and got.result.lse.dtype == torch.float32
    torch.testing.assert_close(got.result.lse.double(), exact.result.lse, rtol=1e-6, atol=1e-6)
    assert_close(got, exact, 4 * torch.finfo(dtype).eps)
    assert set(engines) == {"_fused_forward"}


def test_capped_heads_with_slopes_are_spelled_out(engines):
    case = replace(SHORT, softcap=5.0)
    assert_close(run(case, "blocked"), run(case, "reference"), 1e-11)
    assert set(engines) == {"_dense_forward"}
