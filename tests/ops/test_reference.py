"""The reference against a formula written as loops over single numbers, and against finite differences."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from longshort import HeadPlan, attention

from .cases import HALF, Case, assert_no_worse_than_rounding, run, run_in_rounding

PLAIN = HeadPlan(windows=(None, 1, 3, 9))
CASES = {
    "plain": Case(kv_heads=4, n_queries=7, n_keys=7, dim=3, plan=PLAIN),
    "global only": Case(kv_heads=2, n_queries=6, n_keys=6, dim=2, plan=HeadPlan.full(2)),
    "one position": Case(kv_heads=2, n_queries=1, n_keys=1, dim=1, plan=HeadPlan(windows=(None, 1))),
    "keys before the queries": Case(kv_heads=4, n_queries=4, n_keys=9, dim=3, plan=PLAIN),
    "grouped queries": Case(kv_heads=2, n_queries=5, n_keys=6, dim=3, plan=PLAIN),
    "one key head": Case(kv_heads=1, n_queries=5, n_keys=6, dim=3, plan=PLAIN),
    "two-sided": Case(kv_heads=4, n_queries=7, n_keys=7, dim=3, plan=PLAIN, causal=False),
    "two-sided, keys before": Case(kv_heads=2, n_queries=4, n_keys=9, dim=3, plan=PLAIN, causal=False),
    "scale": Case(kv_heads=4, n_queries=6, n_keys=7, dim=3, plan=PLAIN, scale=-1.3),
    "softcap": Case(kv_heads=4, n_queries=6, n_keys=7, dim=3, plan=PLAIN, softcap=0.7),
    "slopes": Case(
        kv_heads=4, n_queries=6, n_keys=7, dim=3, plan=HeadPlan(windows=PLAIN.windows, slopes=(0.3, 1, 0.1, 0.02))
    ),
    "decays": Case(
        kv_heads=4, n_queries=6, n_keys=7, dim=3, plan=HeadPlan(windows=PLAIN.windows, decays=(0.3, 1, 0.1, 0.02))
    ),
    "segments": Case(kv_heads=4, n_queries=6, n_keys=8, dim=3, plan=PLAIN, segments="shuffled"),
    "padding": Case(kv_heads=4, n_queries=6, n_keys=8, dim=3, plan=PLAIN, segments="negatives"),
    "all padding": Case(kv_heads=4, n_queries=3, n_keys=4, dim=2, plan=PLAIN, segments="all padding"),
    "everything": Case(
        kv_heads=2,
        n_queries=6,
        n_keys=8,
        dim=3,
        plan=HeadPlan(windows=PLAIN.windows, slopes=(0.3, 1, 0.1, 0.02), decays=(0.3, 0.2, 0.1, 0.02)),
        scale=0.9,
        softcap=1.5,
        segments="negatives",
        causal=False,
    ),
}


def by_loops(case, q, k, v):
    """out, lse, and the extremes of scale * q.k, one number at a time, by the words of the definition."""
    q, k, v = q.tolist(), k.tolist(), v.tolist()
    segments = None if case.segments is None else case.make_segments().tolist()
    heads, past = case.plan.n_heads, case.n_keys - case.n_queries
    scale = 1 / math.sqrt(case.dim) if case.scale is None else case.scale
    out = [[[[0.0] * case.dim for _ in range(case.n_queries)] for _ in range(heads)] for _ in range(case.batch)]
    lse = [[[-math.inf] * case.n_queries for _ in range(heads)] for _ in range(case.batch)]
    largest, smallest = [-math.inf] * heads, [math.inf] * heads
    for b in range(case.batch):
        for h in range(heads):
            kv, window = h * case.kv_heads // heads, case.plan.windows[h]
            for row in range(case.n_queries):
                t = row + past
                weights = {}
                for j in range(case.n_keys):
                    distance = abs(t - j)
                    if (case.causal and j > t) or (window is not None and distance >= window):
                        continue
                    if segments and (segments[b][t] != segments[b][j] or segments[b][t] < 0):
                        continue
                    x = scale * sum(q[b][h][row][d] * k[b][kv][j][d] for d in range(case.dim))
                    largest[h], smallest[h] = max(largest[h], x), min(smallest[h], x)
                    if case.plan.decays:
                        x *= math.exp(-case.plan.decays[h] * distance)
                    if case.softcap:
                        x = case.softcap * math.tanh(x / case.softcap)
                    if case.plan.slopes:
                        x -= case.plan.slopes[h] * distance
                    weights[j] = math.exp(x)
                total = sum(weights.values())
                if weights:
                    lse[b][h][row] = math.log(total)
                for j, weight in weights.items():
                    for d in range(case.dim):
                        out[b][h][row][d] += weight / total * v[b][kv][j][d]
    return [torch.tensor(x, dtype=torch.float64) for x in (out, lse, largest, smallest)]


@pytest.mark.parametrize("name", CASES)
def test_reference_is_the_formula_number_by_number(name):
    case = CASES[name]
    q, k, v = (torch.randn_like(x, dtype=torch.float64) for x in case.tensors()[:3])
    result = attention(q, k, v, case.plan, **case.options, stats=True, backend="reference")
    out, lse, largest, smallest = by_loops(case, q, k, v)
    torch.testing.assert_close(result.out, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.lse, lse, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.stats.max, largest.float())
    torch.testing.assert_close(result.stats.min, smallest.float())


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("all padding", "one position")])
def test_gradients_of_the_reference_are_those_of_finite_differences(name):
    case = CASES[name]
    inputs = [torch.randn_like(x, dtype=torch.float64).requires_grad_() for x in case.tensors()[:3]]
    options = case.options
    assert gradcheck(
        lambda q, k, v: attention(q, k, v, case.plan, **options, backend="reference").out, inputs, fast_mode=True
    )


def test_reference_can_be_differentiated_twice():
    case = CASES["everything"]
    inputs = [torch.randn_like(x, dtype=torch.float64).requires_grad_() for x in case.tensors()[:3]]
    options = case.options
    assert gradgradcheck(
        lambda q, k, v: attention(q, k, v, case.plan, **options, backend="reference").out, inputs, fast_mode=True
    )


@pytest.mark.parametrize("dtype", HALF)
def test_reference_in_half_precision_errs_at_most_as_much_as_its_rounding(dtype):
    case = Case(kv_heads=4, n_queries=40, n_keys=50, dim=16, plan=PLAIN, dtype=dtype)
    assert_no_worse_than_rounding(run(case, "reference"), run(case, "reference", torch.float64), run_in_rounding(case))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(torch.float32, torch.float32), (torch.float64, torch.float64), *((half, torch.float32) for half in HALF)],
)
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_out_has_the_dtype_of_q_and_lse_at_least_fp32(backend, dtype, wide):
    q, k, v = torch.randn(3, 2, 2, 9, 4, dtype=dtype).unbind()
    result = attention(q, k, v, HeadPlan(windows=(None, 3)), stats=True, backend=backend)
    assert (result.out.dtype, result.lse.dtype) == (dtype, wide)
    assert result.stats.max.dtype == result.stats.min.dtype == torch.float32
