"""LaS decay: plans that mix it with windows, distances of long texts, and statistics that do not feel it."""

from importlib.util import find_spec

import pytest
import torch

from longshort import HeadPlan, attention

FAR = 131_072
DECAYS = (0.0, 1e-5, 1e-3, 1.0)
MIXED = HeadPlan(windows=(None, None, 5, 9), decays=(0.0, 0.05, 0.1, 0.0))
BACKENDS = ["reference", "blocked", *(["triton"] if find_spec("triton") else [])]


def formula(q, k, v, plan):
    """out and lse by the definition, in float64, with distances counted in integers."""
    q, k, v = (x.double() for x in (q, k, v))
    n_queries, n_keys = q.shape[2], k.shape[2]
    offset = torch.arange(n_keys - n_queries, n_keys)[:, None] - torch.arange(n_keys)
    heads = []
    for head, (window, decay) in enumerate(zip(plan.windows, plan.decays, strict=True)):
        x = q[:, head] @ k[:, head].mT / q.shape[-1] ** 0.5 * torch.exp(-decay * offset.double())
        unseen = (offset < 0) | (offset >= (window or n_keys))
        heads.append(x.masked_fill(unseen, -torch.inf))
    x = torch.stack(heads, dim=1)
    return x.softmax(-1) @ v, x.logsumexp(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plan_mixes_windows_and_decays(backend):
    torch.manual_seed(0)
    q, k, v = (3 * torch.randn(3, 2, 4, 40, 8)).unbind()
    result = attention(q, k, v, MIXED, backend=backend)
    out, lse = formula(q, k, v, MIXED)
    torch.testing.assert_close(result.out.double(), out, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(result.lse.double(), lse, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_a_long_text_loses_no_precision(backend):
    torch.manual_seed(0)
    plan = HeadPlan(windows=(None,) * 4, decays=DECAYS)
    q = 6 * torch.randn(1, 4, 3, 4)
    k, v = torch.randn(2, 1, 4, FAR, 4).unbind()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    result = attention(*leaves, plan, backend=backend)
    out, lse = formula(*leaves, plan)
    torch.testing.assert_close(result.lse.double(), lse, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(result.out.double(), out, atol=1e-5, rtol=1e-5)
    for got, want in zip(*(torch.autograd.grad(x.sum(), leaves) for x in (result.out, out)), strict=True):
        torch.testing.assert_close(got, want, atol=5e-5, rtol=1e-4)  # sums of 131,072 terms in fp32


@pytest.mark.parametrize("backend", BACKENDS[:2])
def test_far_keys_that_are_all_alike_keep_their_weight(backend):
    torch.manual_seed(0)
    plan = HeadPlan(windows=(None, None), decays=(0.0005, 0.001))
    q, k = 3 * torch.randn(1, 2, 2, 16), torch.randn(1, 2, FAR, 16)
    result = attention(q, k, torch.ones_like(k), plan, backend=backend)
    torch.testing.assert_close(result.out, torch.ones_like(q), atol=5e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_are_those_of_the_logits_before_the_decay(backend):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 40, 8).unbind()
    plain = HeadPlan(windows=MIXED.windows)
    decayed, undecayed = (attention(q, k, v, plan, stats=True, backend=backend).stats for plan in (MIXED, plain))
    assert torch.equal(decayed.max, undecayed.max) and torch.equal(decayed.min, undecayed.min)
