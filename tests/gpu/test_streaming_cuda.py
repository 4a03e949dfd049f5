"""Streaming heads on a GPU: kernels and decoding steps against the reference, and a whole model with both caches."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, attention, reach

from ..ops.cases import HALF, Case, assert_close, assert_no_worse_than_rounding, run, run_in_rounding
from ..ops.decode.cases import Step, check

PLAN = HeadPlan(windows=(None, 50, 7, 200), firsts=(0, 4, 64, 130))
CASES = {
    "plain": {},
    "long windows": {"plan": HeadPlan(windows=(None, 1024, 1500, 30), firsts=(0, 4, 64, 1)), "n_queries": 2500},
    "grouped": {"kv_heads": 2},
    "keys before the queries": {"n_queries": 300},
    "two-sided": {"causal": False},
    "documents": {"segments": "sorted"},
    "documents in any order": {"segments": "shuffled"},
    "left padding": {"segments": "left padding"},
    "decays": {"plan": HeadPlan(windows=PLAN.windows, firsts=PLAN.firsts, decays=(0.0, 0.01, 0.1, 0.001))},
    "decays, two-sided": {
        "plan": HeadPlan(windows=PLAN.windows, firsts=PLAN.firsts, decays=(0.0, 0.01, 0.1, 0.001)), "causal": False
    },
    "softcap and slopes": {"plan": PLAN.with_alibi(), "softcap": 20.0},
    "negative scale": {"scale": -0.2},
    "fused projection": {"kv_heads": 2, "layout": "fused qkv"},
    "head dim 128": {"dim": 128},
}  # fmt: skip
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def case_of(name, dtype):
    fields = {"batch": 2, "kv_heads": 4, "n_queries": 1111, "dim": 64, "plan": PLAN} | CASES[name]
    keys = max(1111, fields["n_queries"])
    return Case(n_keys=keys, dtype=dtype, device="cuda", poison=True, **fields)


@pytest.mark.parametrize("backend", ["triton", "blocked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_agree_with_the_reference(name, dtype, backend):
    case = case_of(name, dtype)
    exact, got = run(case, "reference", torch.float64), run(case, backend)
    if dtype in HALF:
        assert_no_worse_than_rounding(got, exact, run_in_rounding(case))
    else:
        assert_close(got, exact)


def test_flex_and_sdpa_agree_with_the_reference():
    q, k, v = torch.randn(3, 2, 4, 512, 64, device="cuda").unbind()
    wanted = attention(q, k, v, PLAN, backend="reference").out
    for backend in ("flex", "sdpa"):
        torch.testing.assert_close(attention(q, k, v, PLAN, backend=backend).out, wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_decoding_steps_agree_with_the_reference(kv_heads, dtype):
    step = Step(windows=(128, 7, 65, 128), firsts=(4, 4, 130, 1), held=0, kv_heads=kv_heads, batch=2, dim=64,
                capacity=1500, shape=None, device="cuda", dtype=dtype)  # fmt: skip
    for held in (0, 1, 3, 4, 127, 128, 200, 1499):
        check(replace(step, held=held), "triton", TOLERANCES[dtype])
    for held in (3, 1000):
        check(replace(step, held=held, new=5, rollback=7), "triton", TOLERANCES[dtype])
        check(replace(step, held=held, padding=(0, min(held, 690))), "triton", TOLERANCES[dtype])


@pytest.mark.parametrize("static", [False, True])
def test_a_model_decodes_as_it_reads(static):
    torch.manual_seed(0)
    layers = reach.streaming(4, 32, n_layers=2, n_heads=4, n_global=1)
    config = GPTConfig(vocab_size=50, context=512, n_layers=2, width=128, n_heads=4, positions="rotary", reach=layers)
    model, tokens = GPT(config).eval().cuda(), torch.randint(50, (2, 200), device="cuda")
    segments = torch.where(torch.arange(200) < torch.tensor([[0], [13]]), -1, 0).cuda()
    options = {"static": True, "max_length": 200} if static else {}
    with torch.no_grad():
        wanted = model(tokens, segments=segments).logits
        cache, parts = model.new_cache(batch_size=2, **options), []
        for part, ids in zip(tokens.split((100, *(1,) * 100), 1), segments.split((100, *(1,) * 100), 1), strict=True):
            parts.append(model(part, segments=ids, cache=cache).logits)
    found = torch.cat(parts, dim=1)
    torch.testing.assert_close(found[segments >= 0], wanted[segments >= 0], atol=2e-3, rtol=2e-3)
