"""FlexAttention as a backend, as far as a CPU goes: what it refuses, and the numbers of its uncompiled form.

Compiled, with gradients, it is held to the reference in tests/gpu/test_flex_cuda.py.
"""

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from longshort import HeadPlan, attention
from longshort.ops import flex
from longshort.ops.options import Options

PLANS = {
    "global": HeadPlan.full(4),
    "long-short": HeadPlan.long_short(n_heads=4, n_global=1, window=5),
    "decays and slopes": HeadPlan(windows=(None, 9, 3, None), decays=(0.0, 0.1, 0.3, 0.01), slopes=(0.1, 0.0, 0.2, 1)),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_queries", [40, 13])
@pytest.mark.every(3)
def test_what_it_is_asked_to_compute_is_the_reference(name, causal, n_queries):
    q, k, v = torch.randn(2, 4, n_queries, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16)
    options = {"scale": 0.4, "causal": causal, "softcap": 3.0 if name == "decays and slopes" else None}
    out, lse = flex.computed(flex_attention, q, k, v, Options.of(PLANS[name], **options))
    expected = attention(q, k, v, PLANS[name], **options, backend="reference")
    torch.testing.assert_close(out, expected.out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, expected.lse, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_rates_are_fp32_whatever_the_default_dtype(bf16_by_default):
    q, k, v = torch.randn(3, 1, 2, 300, 16, dtype=torch.float32).unbind()
    plan = HeadPlan(windows=(None, None), decays=(0.003, 0.0), slopes=(0.0, 0.3))
    out, _ = flex.computed(flex_attention, q, k, v, Options.of(plan))
    torch.testing.assert_close(out, attention(q, k, v, plan, backend="reference").out, atol=1e-5, rtol=1e-5)


def test_block_masks_are_kept_by_plan_and_shapes():
    arguments = (Options.of(PLANS["long-short"]).windows, True, 40, 40, torch.device("cpu"))
    assert flex._block_mask(*arguments) is flex._block_mask(*arguments)


def test_what_is_kept_of_a_call_in_inference_mode_serves_training():
    options = Options(windows=(None, 8), decays=(0.0, 0.25), firsts=(0, 2))
    flex._block_mask.cache_clear()
    flex._score_mod.cache_clear()
    with torch.inference_mode():
        mask = flex._block_mask((64, 8), True, 64, 64, torch.device("cpu"), (0, 2))
        score = flex._score_mod(options._replace(windows=(), firsts=None), 0, torch.device("cpu"))
    of_mask, of_score = ([cell.cell_contents for cell in kept.__closure__] for kept in (mask.mask_mod, score))
    kept = [mask.kv_num_blocks, mask.kv_indices, *of_mask, *of_score]
    kept = [value for value in kept if isinstance(value, torch.Tensor)]
    assert len(kept) == 5 and not any(value.is_inference() for value in kept)


def test_without_a_gpu_it_is_refused_with_the_reason():
    q, k, v = torch.randn(3, 1, 4, 20, 16).unbind()
    with pytest.raises(ValueError, match=r'^backend="flex" cannot serve this call: .* CUDA GPUs only, and q is on cpu'):
        attention(q, k, v, PLANS["global"], backend="flex")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"extremes": 1}, "train with telemetry.logits_every=0"),
        ({"segments": torch.zeros(1, 20, dtype=torch.long)}, "a new block mask for every batch"),
    ],
)
def test_what_it_does_not_serve_is_refused_with_the_reason(options, reason):
    q, k, v = torch.randn(3, 1, 4, 20, 16).unbind()
    arguments = {"segments": None, "extremes": 0} | options
    with pytest.raises(ValueError, match=f'^backend="flex" cannot serve this call: .*{reason}'):
        flex.attend(q, k, v, Options.of(PLANS["global"]), **arguments)
