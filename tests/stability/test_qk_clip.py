"""QK-clip: a head over the bound comes back to it, and nothing else moves."""

import math

import pytest
import torch

from longshort import GPT, GPTConfig
from longshort.stability import qk_clip
from longshort.stability.qk_clip import check_qk_clip


def model_with_large_logits(**changes):
    sizes = {"vocab_size": 50, "context": 32, "n_layers": 2, "width": 32, "n_heads": 4, "init_std": 0.3}
    return GPT(GPTConfig(**sizes | changes)).eval()


def largest_logits(model, tokens):
    with torch.no_grad():
        return model(tokens, stats=True).stats[..., 0]


@pytest.fixture
def tokens():
    return torch.randint(50, (2, 32))


OPTIONS = {"plain": {}, "bias": {"bias": True}, "rotary": {"positions": "rotary"}, "ls": {"n_global": 1, "window": 5}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("alpha", [0.5, 0.2])
def test_a_head_above_the_threshold_comes_back_to_it_on_the_same_batch(tokens, options, alpha):
    model = model_with_large_logits(**options)
    if options.get("bias"):
        for block in model.blocks:
            torch.nn.init.normal_(block.attention.qkv.bias)
    before = largest_logits(model, tokens)[0]
    threshold = before.sort().values[1:3].mean().item()  # two heads of the first layer are above, two below
    factors = qk_clip(model, largest_logits(model, tokens), threshold=threshold, alpha=alpha)
    after = largest_logits(model, tokens)[0]  # of the first layer: what the second one reads has changed
    above = before > threshold
    assert above.sum() == 2
    torch.testing.assert_close(after[above], torch.full((2,), threshold), rtol=1e-5, atol=0)
    assert torch.equal(after[~above], before[~above])
    torch.testing.assert_close(factors[0], (threshold / before).clamp(max=1))


def test_heads_below_the_threshold_keep_their_weights_bit_for_bit():
    model = model_with_large_logits(bias=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    largest = torch.tensor([[5.0, 200.0, -3.0, -math.inf], [100.0, 0.0, 99.9, 1e-9]])
    qk_clip(model, largest, threshold=100.0)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"blocks.0.attention.qkv.weight"}  # biases are 0 at the start
    rows = (model.blocks[0].attention.qkv.weight != before["blocks.0.attention.qkv.weight"]).any(1).nonzero()[:, 0]
    assert rows.tolist() == [*range(8, 16), *range(32 + 8, 32 + 16)]  # queries and keys of head 1, no values


@pytest.mark.parametrize("largest", [-math.inf, -50.0, 0.0, -0.0, math.nan, math.inf])
def test_a_largest_logit_that_is_no_excess_gives_the_factor_one(largest):
    model = model_with_large_logits()
    before = model.blocks[0].attention.qkv.weight.clone()
    factors = qk_clip(model, torch.full((2, 4), largest), threshold=10.0)
    assert factors.tolist() == [[1.0] * 4] * 2
    assert torch.equal(model.blocks[0].attention.qkv.weight, before)


def test_with_grouped_queries_only_the_queries_of_the_head_change(tokens):
    model = model_with_large_logits(n_kv_heads=2)
    weight = model.blocks[0].attention.qkv.weight
    original, before = weight.detach().clone(), largest_logits(model, tokens)
    threshold = before[0].sort().values[2:].mean().item()  # one head above
    head = int(before[0].argmax())
    qk_clip(model, before, threshold=threshold)
    rows = (weight != original).any(1).nonzero()[:, 0]
    assert rows.tolist() == list(range(8 * head, 8 * head + 8))
    after = largest_logits(model, tokens)[0]
    assert after[head].item() == pytest.approx(threshold, rel=1e-5)
    others = [h for h in range(4) if h != head]
    assert torch.equal(after[others], before[0, others])


@pytest.mark.parametrize("change", [{"qk_norm": "head"}, {"qk_norm": "plain"}, {"sigma_reparam": True}])
def test_models_that_undo_the_rescaling_are_refused(change):
    with pytest.raises(ValueError, match=f"qk_clip must be off with {next(iter(change))}"):
        check_qk_clip(model_with_large_logits(**change))


def test_other_models_are_let_through():
    check_qk_clip(model_with_large_logits(softcap=30.0, n_kv_heads=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"largest_LH": torch.ones(4)}, r"largest_LH must be a tensor of shape .* = \(2, 4\), got \(4,\)"),
        ({"largest_LH": [[1.0]]}, "largest_LH must be a tensor .* got list"),
        # The power of a negative factor would make the weights NaN.
        ({"threshold": math.inf}, "threshold must be a finite number > 0, got inf"),
        ({"threshold": -1.0}, r"threshold must be a finite number > 0, got -1\.0"),
        ({"alpha": 2.0}, r"alpha must be a number from 0 to 1, got 2\.0"),
        ({"model": torch.nn.Linear(2, 2)}, "model must have an LSAttention layer"),
        ({"model": model_with_large_logits(qk_norm="head")}, "qk_clip must be off with qk_norm"),
    ],
)
def test_wrong_arguments_are_named_and_no_weight_moves(change, message):
    model = model_with_large_logits()
    before = model.blocks[0].attention.qkv.weight.clone()
    with pytest.raises(ValueError, match=message):
        qk_clip(**({"model": model, "largest_LH": torch.full((2, 4), 200.0)} | change))
    assert torch.equal(model.blocks[0].attention.qkv.weight, before)
