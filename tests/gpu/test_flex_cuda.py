"""FlexAttention as a backend, compiled: outputs, lse and gradients against the float64 reference."""

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, attention

# Dynamo warns of torch's own code: of .grad at a graph break, which it hides but not where warnings are errors, and of
# an autograd function in the compiled mask.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

PLANS = {
    "global": HeadPlan.full(4),
    "long-short": HeadPlan.long_short(n_heads=4, n_global=1, window=50),
    "decays and slopes": HeadPlan(windows=(None, 90, 3, None), decays=(0.0, 0.1, 0.3, 0.01), slopes=(0.1, 0.0, 0.2, 1)),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("n_queries", "causal", "kv_heads"), [(301, True, 4), (301, False, 2), (77, True, 1)])
def test_outputs_and_gradients_are_those_of_the_reference(name, n_queries, causal, kv_heads):
    torch._dynamo.reset()
    q = torch.randn(2, 4, n_queries, 64, device="cuda", requires_grad=True)
    k, v = (torch.randn(2, kv_heads, 301, 64, device="cuda", requires_grad=True) for _ in range(2))
    options = {"causal": causal, "softcap": 3.0 if name == "decays and slopes" else None}
    result = attention(q, k, v, PLANS[name], **options, backend="flex")
    grad = torch.randn_like(q)
    found = (result.out, result.lse, *torch.autograd.grad(result.out, (q, k, v), grad))
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    exact = attention(q, k, v, PLANS[name], **options, backend="reference")
    expected = (exact.out, exact.lse, *torch.autograd.grad(exact.out, (q, k, v), grad.double()))
    assert not result.lse.requires_grad
    for mine, theirs in zip(found, expected, strict=True):  # fp32 products are tf32 there
        torch.testing.assert_close(mine.double(), theirs, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_trains_with_it_as_with_ours(compiled):
    torch._dynamo.reset()
    tokens, losses = torch.randint(64, (2, 200), device="cuda"), []
    for backend in ("flex", "sdpa", "triton"):
        torch.manual_seed(0)
        sizes = {"vocab_size": 64, "width": 128, "n_layers": 2, "n_heads": 4, "context": 256}
        model = GPT(GPTConfig(**sizes, n_global=1, window=30, backend=backend)).cuda()
        optimizer, run = torch.optim.SGD(model.parameters(), 0.5), torch.compile(model) if compiled else model
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16):
                loss = run(tokens, tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[2], rel=1e-2) and losses[1] == pytest.approx(losses[2], rel=1e-2)
