"""Where attention goes: the weights are the op's, and the numbers are right where they are known beforehand."""

import pytest
import torch

from experiments.engine.anatomy import _attention, anatomy, effective_rank
from longshort import GPT, HeadPlan, attention
from longshort.nn import LSAttention
from longshort.ops import Smoothing

from ...small import small_config

PLANS = {
    "windows": HeadPlan(windows=(None, 5, 1)),
    "alibi": HeadPlan(windows=(None, 7, 3)).with_alibi(),
    "decay": HeadPlan.las(n_heads=3, max_decay=0.1),
}


@pytest.mark.parametrize("smoothing", [None, Smoothing(width=3, stage="before")])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_weights_are_those_of_the_op(plan, softcap, smoothing):
    q, k, v = torch.randn(3, 1, 3, 20, 8, dtype=torch.float64).unbind()
    logits, weights, visible = _attention(q[0], k[0], plan, softcap, smoothing)
    result = attention(q, k, v, plan, softcap=softcap, smoothing=smoothing, stats=True, backend="reference")
    torch.testing.assert_close(weights @ v[0], result.out[0])
    largest = logits.masked_fill(~visible, 0).abs().amax((1, 2))
    torch.testing.assert_close(largest.float(), result.stats.abs_max)


def model_with_even_attention(**reach):
    """Queries are zero, so every visible key gets the same weight."""
    model = GPT(small_config(**reach))
    for module in model.modules():
        if isinstance(module, LSAttention):
            torch.nn.init.zeros_(module.qkv.weight)
    return model


def test_even_attention_has_the_mass_that_counting_gives():
    model = model_with_even_attention(plan=HeadPlan(windows=(None, 10, 4, 1)))
    found = anatomy(model, torch.randint(256, (2, 40)), near=4)
    # Query t of a global head sees t + 1 keys, 4 of them near; only those with t >= 4 see a far one.
    everything = sum(4 / (t + 1) for t in range(4, 40)) / 36
    ten = sum(4 / min(t + 1, 10) for t in range(4, 40)) / 36
    for layer in found["near_mass"]:
        assert layer == pytest.approx([everything, ten, 1.0, 1.0], abs=1e-4)
    assert [row[2:] for row in found["far_keys"]] == [[0.0, 0.0]] * 2
    assert [row[2:] for row in found["far_noticed"]] == [[None, None]] * 2
    assert found["far_keys"][0][0] == pytest.approx(sum(t - 3 for t in range(4, 40)) / 36, abs=1e-4)
    assert found["far_noticed"][0][0] == 1.0  # 40 keys at most: each has more than 1 %
    assert found["logit"] == [[0.0] * 4] * 2
    assert found["attention_rank"][0][3] == pytest.approx(40, abs=1e-3)  # a head that sees itself: the identity


def test_logits_are_those_that_the_model_reports():
    model = GPT(small_config()).eval()
    tokens = torch.randint(256, (2, 50))
    stats = model(tokens, stats=True).stats
    found = torch.tensor(anatomy(model, tokens)["logit"])
    torch.testing.assert_close(found, torch.maximum(stats[..., 0], -stats[..., 1]), atol=1e-4, rtol=1e-4)


def test_a_broken_model_gives_no_numbers_and_no_error():
    model = GPT(small_config())
    torch.nn.init.constant_(model.blocks[1].attention.qkv.weight, torch.nan)
    found = anatomy(model, torch.randint(256, (1, 20)))
    assert None not in found["logit"][0] and found["logit"][1] == [None] * 4 == found["attention_rank"][1]


def test_the_mode_of_the_model_is_left_as_it_was():
    model = GPT(small_config()).train()
    anatomy(model, torch.randint(256, (1, 20)))
    assert model.training and not model.blocks[0].attention._forward_pre_hooks


def test_effective_rank_counts_equal_directions():
    assert effective_rank(torch.ones(2, 7)).tolist() == pytest.approx([7.0, 7.0])


def test_smoothing_after_the_softmax_is_left_out():
    model, tokens = GPT(small_config(n_layers=1)), torch.randint(256, (1, 30))
    smoothed = GPT(small_config(n_layers=1, smoothing=4))
    smoothed.load_state_dict(model.state_dict())
    assert anatomy(smoothed, tokens, near=4) == anatomy(model, tokens, near=4)


def test_chunks_are_refused():
    with pytest.raises(
        ValueError, match="model must have causal attention over whole sequences, got a layer with chunks"
    ):
        anatomy(GPT(small_config(attention_chunk=8)), torch.randint(256, (1, 30)))


def test_sinks_are_refused():
    model = GPT(small_config(reach={"pattern": "long_short", "n_global": 1, "window": 8, "sinks": True}))
    with pytest.raises(ValueError, match="model must have no sinks"):
        anatomy(model, torch.randint(256, (1, 20)))
