"""PyTorch's SDPA as a backend: held to the reference on what it serves, refused by name on what it does not."""

import re

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, attention
from longshort.ops import sdpa
from longshort.stability.entropy import check_entropy

PLANS = {
    "global": HeadPlan.full(4),
    "long-short": HeadPlan.long_short(n_heads=4, n_global=1, window=5),
    "out of order": HeadPlan(windows=(7, None, 3, None)),
    "window of all keys": HeadPlan(windows=(None, 30, 31, 200)),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(30, 30), (13, 30), (1, 30), (1, 1)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_outputs_and_gradients_are_those_of_the_reference(name, causal, n_queries, n_keys, kv_heads):
    q = torch.randn(2, 4, n_queries, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, n_keys, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    grad, found = torch.randn_like(q), {}
    for backend in ("sdpa", "reference"):
        out = attention(q, k, v, PLANS[name], causal=causal, scale=0.4, backend=backend).out
        found[backend] = (out, *torch.autograd.grad(out, (q, k, v), grad))
    torch.testing.assert_close(found["sdpa"], found["reference"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_has_the_dtype_of_q_and_an_lse_that_is_empty(dtype):
    q, k, v = torch.randn(3, 1, 4, 20, 8).to(dtype).unbind()
    result = attention(q, k, v, PLANS["long-short"], backend="sdpa")
    assert result.out.dtype == dtype and result.lse.shape == (0,) and result.stats is None
    expected = attention(q, k, v, PLANS["long-short"], backend="reference").out
    torch.testing.assert_close(result.out, expected, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2)


def test_an_empty_call_gives_an_empty_result():
    q, k = torch.randn(2, 4, 0, 8), torch.randn(2, 4, 5, 8)
    assert attention(q, k, k, HeadPlan.full(4), backend="sdpa").out.shape == (2, 4, 0, 8)


UNSERVED = {
    "SDPA has no logit statistics; call it with stats=False, and train with telemetry.logits_every=0": {"stats": True},
    "segments would need a T x S mask": {"segments": torch.zeros(1, 20, dtype=torch.long)},
    "SDPA has no softcap, got 3.0": {"softcap": 3.0},
    "SDPA has no decay": {"plan": HeadPlan.las(n_heads=4, max_decay=0.1)},
    "slopes would need a T x S mask": {"plan": HeadPlan.full(4).with_alibi()},
    "scale must be positive, got -1": {"scale": -1},
}


@pytest.mark.parametrize("reason", UNSERVED)
def test_what_it_does_not_serve_is_refused_with_the_reason(reason):
    q, k, v = torch.randn(3, 1, 4, 20, 8).unbind()
    with pytest.raises(ValueError, match='^backend="sdpa" cannot serve this call: .*' + re.escape(reason)):
        attention(q, k, v, **{"plan": HeadPlan.full(4), "backend": "sdpa"} | UNSERVED[reason])


def test_a_mask_past_the_largest_size_is_refused_and_a_causal_flag_is_not(monkeypatch):
    monkeypatch.setattr(sdpa, "LARGEST_MASK", 399)
    q, k, v = torch.randn(3, 1, 4, 20, 8).unbind()
    attention(q, k, v, HeadPlan.full(4), backend="sdpa")
    attention(q, k, v, HeadPlan(windows=(20,) * 4), causal=False, backend="sdpa")
    with pytest.raises(ValueError, match="T x S = 20 x 20 is more than 399 entries"):
        attention(q, k, v, PLANS["long-short"], backend="sdpa")
    with pytest.raises(ValueError, match="T x S = 20 x 40"):
        attention(q, torch.cat((k, k), 2), torch.cat((v, v), 2), HeadPlan.full(4), backend="sdpa")


def model(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "width": 32, "n_layers": 2, "n_heads": 4, "context": 40, "n_global": 1, "window": 5}
    return GPT(GPTConfig(**sizes | options))


def test_a_model_trains_with_it_as_with_ours():
    tokens, found = torch.randint(64, (2, 30)), []
    for backend in ("sdpa", "blocked"):
        made = model(backend=backend)
        made(tokens, tokens).loss.backward()
        found.append([parameter.grad for parameter in made.parameters()])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


def test_a_compiled_model_is_one_graph():
    made, tokens = model(backend="sdpa"), torch.randint(64, (2, 30))
    compiled = torch.compile(lambda x: made(x, x).loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), made(tokens, tokens).loss)


def test_a_model_decodes_with_it():
    made, tokens = model(backend="sdpa").eval(), torch.randint(64, (1, 30))
    for static in (False, True):
        cache = made.new_cache(static=static)
        parts = [made(part, cache=cache).logits for part in tokens.split((20, 1, 9), dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), made(tokens).logits, atol=1e-5, rtol=1e-4)


def test_a_model_asked_for_statistics_or_entropy_says_why_there_are_none():
    made = model(backend="sdpa")
    with pytest.raises(ValueError, match=r"telemetry.logits_every=0"):
        made(torch.randint(64, (1, 10)), stats=True)
    with pytest.raises(ValueError, match='takes the lse, which backend="sdpa" does not give'):
        check_entropy(made)
