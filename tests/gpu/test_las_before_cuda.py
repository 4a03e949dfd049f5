"""LaS pooled before the softmax on a GPU: the kernels over smoothed keys, captured and compiled steps."""

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, attention, generate
from longshort.ops import Smoothing

LAS = HeadPlan(windows=(None, 50, None, 50), decays=(0.0, 0.001, 0.01, 0.3))
BY_GROUP = HeadPlan(windows=(None, None, 50, 50), decays=(0.01, 0.01, 0.3, 0.3))
CASES = {
    "decays": {"plan": LAS},
    "groups that share a decay": {"plan": BY_GROUP, "kv_heads": 2},
    "groups of several decays": {"plan": LAS, "kv_heads": 2},
    "more keys than queries": {"plan": LAS, "n_queries": 37},
    "softcap": {"plan": LAS, "softcap": 5.0},
    "alibi": {"plan": HeadPlan.long_short(n_heads=4, n_global=1, window=50).with_alibi()},
    "two-sided": {"plan": HeadPlan(windows=(None, 50, 50, 50)), "causal": False, "side": "centred"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_attention_over_smoothed_keys_agrees_with_the_reference(name, segmented, dtype):
    case = CASES[name]
    torch.manual_seed(0)
    shapes = (4, case.get("n_queries", 300)), (case.get("kv_heads", 4), 300), (case.get("kv_heads", 4), 300)
    leaves = [torch.randn(2, *shape, 32, device="cuda", dtype=dtype).requires_grad_() for shape in shapes]
    segments = torch.randint(-1, 2, (2, 300), device="cuda").sort(1).values if segmented else None
    options = {"causal": case.get("causal", True), "softcap": case.get("softcap"), "segments": segments, "stats": True}
    options["smoothing"] = Smoothing(width=5, side=case.get("side", "causal"), stage="before")
    found = []
    for backend in ("triton", "reference"):
        result = attention(*leaves, case["plan"], **options, backend=backend)
        stats = result.stats.max.nan_to_num(neginf=0), result.stats.min.nan_to_num(posinf=0)
        found.append((result.out, *stats, *torch.autograd.grad(result.out.sum(), leaves)))
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


def model_of(plan, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "context": 256, "n_layers": 2, "width": 128, "n_heads": 4, "init_std": 0.3}
    config = GPTConfig(**sizes, plan=plan, positions="rotary", smoothing=4, smoothing_stage="before", **options)
    return GPT(config).cuda().eval()


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("plan", "kv_heads"), [(LAS, None), (BY_GROUP, 2), (HeadPlan.las(4, 0.3), 2)])
def test_captured_steps_write_the_same_text(plan, kv_heads, rows):
    model = model_of(plan, n_kv_heads=kv_heads)
    prompts = [torch.randint(256, (9 + 4 * row,)).tolist() for row in range(rows)]
    texts = [
        torch.stack(list(generate(model, prompts, max_new_tokens=90, temperature=0.0, **options))).tolist()
        for options in ({"cuda_graph": True}, {"use_cache": False})
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("static", [False, True])
def test_decoding_in_chunks_has_the_logits_of_the_full_forward(static):
    model, tokens = model_of(LAS), torch.randint(256, (2, 150), device="cuda")
    cache = model.new_cache(2, max_length=150, rollback=3, static=static)
    with torch.no_grad():
        parts = [model(part, cache=cache).logits for part in tokens.split((70, *[1] * 30, 3, 2, 45), dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens).logits, atol=2e-3, rtol=2e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
def test_a_compiled_model_equals_the_eager_one_with_gradients():
    model, tokens = model_of(LAS), torch.randint(256, (2, 101), device="cuda")
    found = []
    for called in (torch.compile(model), model):
        loss = called(tokens[:, :-1], tokens[:, 1:]).loss
        found.append((loss, *torch.autograd.grad(loss, list(model.parameters()))))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)
