"""Attention entropy against the matrix that it avoids to form."""

import math

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, LSAttention
from longshort.ops.smoothing import pool_rows
from longshort.stability import attention_entropy

SIZES = {"vocab_size": 50, "context": 40, "n_layers": 2, "width": 32, "n_heads": 4, "init_std": 0.3}


def dense_entropy(model, tokens, segments=None):
    """(L, H), by the definition: softmax over the visible keys, then the mean of -sum p log p over the rows."""
    inputs = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda module, args: inputs.append((module, args[0])))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(tokens, segments=segments)
    for hook in hooks:
        hook.remove()
    length = tokens.shape[1]
    behind = torch.arange(length)[:, None] - torch.arange(length)
    result = []
    for layer, x in inputs:
        with torch.no_grad():
            q, k, _ = (part.double() for part in layer.heads(x))
        k = k.repeat_interleave(layer.n_heads // layer.n_kv_heads, dim=1)
        logits = q @ k.mT / layer.head_dim**0.5
        if layer.smoothing is not None and layer.smoothing.stage == "before":
            logits = pool_rows(logits, layer.smoothing)
        windows = torch.tensor([length if w is None else w for w in layer.plan.windows])[:, None, None]
        visible = ((behind >= 0) & (behind < windows)).expand_as(logits).clone()
        if segments is not None:
            visible &= (segments[:, :, None] == segments[:, None, :])[:, None]
            visible &= (segments >= 0)[:, None, :, None]
        real, logits = visible.any(-1), logits.masked_fill(~visible, -torch.inf)
        if layer.sinks is not None:
            sinks = layer.sinks.detach().double()[:, None, None].expand(*logits.shape[:3], 1)
            logits = torch.cat((logits, sinks), -1)
        p = logits.softmax(-1)
        rows = torch.special.entr(p).sum(-1)
        result.append(rows.where(real, 0).sum((0, 2)) / real.sum((0, 2)))
    return torch.stack(result)


CASES = {
    "plain": {},
    "ls": {"n_global": 1, "window": 5},
    "rotary": {"positions": "rotary", "n_global": 1, "window": 5},
    "grouped": {"n_kv_heads": 2, "n_global": 2, "window": 7},
    "qk-norm": {"qk_norm": "head"},
    "smoothing after the softmax": {"smoothing": 3},
    "smoothing before the softmax": {"smoothing": 3, "smoothing_stage": "before", "n_global": 1, "window": 5},
    "sinks": {"reach": {"pattern": "long_short", "n_global": 1, "window": 5, "sinks": True}},
    "sinks, smoothing before the softmax": {
        "reach": {"pattern": "long_short", "n_global": 1, "window": 5, "sinks": True},
        **{"smoothing": 3, "smoothing_stage": "before"},
    },
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_it_is_the_entropy_of_the_attention_rows(changes):
    model = GPT(GPTConfig(**SIZES | changes)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    tokens = torch.randint(50, (3, 40))
    found = attention_entropy(model, tokens)
    torch.testing.assert_close(found.double(), dense_entropy(model, tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sinks", [False, True])
def test_it_follows_segments_and_leaves_padding_out(sinks):
    reach = {"pattern": "long_short", "n_global": 1, "window": 5, "sinks": sinks}
    model = GPT(GPTConfig(**SIZES, reach=reach)).eval()
    tokens = torch.randint(50, (2, 40))
    segments = torch.tensor([[0] * 13 + [1] * 27, [4] * 30 + [-1] * 10])
    found = attention_entropy(model, tokens, segments=segments)
    torch.testing.assert_close(found.double(), dense_entropy(model, tokens, segments), rtol=1e-4, atol=1e-5)


def test_dropout_plays_no_part_and_the_model_stays_in_training():
    model = GPT(GPTConfig(**SIZES | {"dropout": 0.5})).train()
    tokens = torch.randint(50, (1, 40))
    assert torch.equal(attention_entropy(model, tokens), attention_entropy(model, tokens))
    assert model.training and model.blocks[0].attention.dropout.training


def test_it_leaves_no_hook_behind():
    model = GPT(GPTConfig(**SIZES))
    attention_entropy(model, torch.randint(50, (1, 8)))
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    "changes", [{"softcap": 30.0}, {"positions": "alibi"}, {"plan": HeadPlan(windows=(None,) * 4, decays=(0.1,) * 4)}]
)
def test_logits_that_are_not_plain_are_refused(changes):
    model = GPT(GPTConfig(**SIZES | changes))
    with pytest.raises(ValueError, match="only known for plain logits"):
        attention_entropy(model, torch.randint(50, (1, 8)))


def test_sequences_that_are_cut_are_refused():
    model = GPT(GPTConfig(**SIZES | {"attention_chunk": 4}))
    with pytest.raises(ValueError, match="only known for whole sequences"):
        attention_entropy(model, torch.randint(50, (1, 8)))


def test_pooled_logits_that_no_keys_give_are_refused():
    pooled = {"smoothing": 3, "smoothing_stage": "before", "smoothing_side": "leading", "backend": "reference"}
    with pytest.raises(ValueError, match=r"only known for logits of keys: .*'leading'"):
        attention_entropy(GPT(GPTConfig(**SIZES | pooled)), torch.randint(50, (1, 8)))


def test_a_layer_may_be_called_with_its_input_by_name():
    class Named(torch.nn.Sequential):
        def forward(self, x):
            return self[0](x=x)

    layer, x = LSAttention(8, HeadPlan(windows=(None, 2))), torch.randn(1, 5, 8)
    assert torch.equal(attention_entropy(Named(layer), x), attention_entropy(torch.nn.Sequential(layer), x))


def test_positions_of_a_two_sided_layer_see_both_sides():
    layer = LSAttention(8, HeadPlan(windows=(None, 2)), causal=False)
    torch.nn.init.zeros_(layer.qkv.weight)
    found = attention_entropy(torch.nn.Sequential(layer), torch.randn(1, 5, 8))[0]
    assert found.tolist() == pytest.approx([math.log(5), (2 * math.log(2) + 3 * math.log(3)) / 5])


def test_a_model_without_the_layer_is_refused():
    with pytest.raises(ValueError, match="model must have an LSAttention layer, got a Linear without one"):
        attention_entropy(torch.nn.Linear(2, 2), torch.randn(1, 2))
