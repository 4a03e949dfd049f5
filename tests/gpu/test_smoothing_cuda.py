"""Smoothing on a GPU: the kernels and the compiled pooling, and captured decoding steps."""

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, attention, generate
from longshort.ops import Smoothing

PLAN = HeadPlan(windows=(None, 50, 50, 50), decays=(0.0, 0.001, 0.01, 0.0))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_smoothed_attention_agrees_with_the_reference(causal, dtype):
    torch.manual_seed(0)
    leaves = [x.requires_grad_() for x in torch.randn(3, 2, 4, 300, 32, device="cuda", dtype=dtype).unbind()]
    segments = torch.randint(-1, 2, (2, 300), device="cuda").sort(1).values
    smoothing = Smoothing(width=5, side="causal" if causal else "centred")
    found = []
    for backend in ("triton", "reference"):
        options = {"causal": causal, "segments": segments, "smoothing": smoothing, "backend": backend}
        out = attention(*leaves, PLAN, **options).out
        found.append((out, *torch.autograd.grad(out.sum(), leaves)))
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("rows", [1, 2])
def test_captured_steps_of_a_smoothed_model_write_the_same_text(rows):
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("tiny", smoothing=4, positions="rotary", init_std=0.3)).cuda().eval()
    prompts = [torch.randint(256, (9 + 4 * row,)).tolist() for row in range(rows)]
    texts = [
        torch.stack(list(generate(model, prompts, max_new_tokens=60, temperature=0.0, **options))).tolist()
        for options in ({"cuda_graph": True}, {"use_cache": False})
    ]
    assert texts[0] == texts[1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
def test_a_compiled_smoothed_model_equals_the_eager_one():
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("tiny", smoothing=3)).cuda()
    tokens = torch.randint(256, (2, 100), device="cuda")
    torch.testing.assert_close(torch.compile(model)(tokens).logits, model(tokens).logits, atol=1e-4, rtol=1e-4)
