"""A trained model lengthened by YaRN: the weights are shared, and only what was rotated and global changes."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan
from longshort.model import lengthened, meets_new_angles
from longshort.nn import RopeScaling

SIZES = {"vocab_size": 61, "context": 16, "width": 32, "n_layers": 2, "n_heads": 4, "init_std": 0.3}


def build(**options):
    return GPT(GPTConfig(**SIZES | {"positions": "rotary"} | options)).eval()


def logits(model, length=64):
    tokens = torch.randint(61, (2, length), generator=torch.Generator().manual_seed(0))
    return model(tokens).logits


@pytest.mark.parametrize("tied", [True, False])
def test_its_logits_are_those_of_a_model_built_with_the_scaling(tied):
    model = build(tie_embeddings=tied)
    longer = lengthened(model, 64)
    scaling = RopeScaling(kind="yarn", factor=4.0, original_context=16, heads="global")
    assert longer.config == replace(model.config, context=64, rope_scaling=scaling)
    other = GPT(longer.config)
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(longer), logits(other.eval()))
    assert not torch.allclose(logits(longer), logits(model), atol=0.1)


def test_the_weights_are_shared_and_neither_model_is_changed_otherwise():
    model = build().to(torch.float64).train()
    model.gradient_checkpointing = True
    model.embedding.requires_grad_(False)
    model.blocks[1].eval()
    expected = logits(model)
    longer = lengthened(model, 64)
    for (name, mine), (other, theirs) in zip(model.named_parameters(), longer.named_parameters(), strict=True):
        assert name == other and mine.data_ptr() == theirs.data_ptr() and theirs.requires_grad == mine.requires_grad
    assert [part.training for part in longer.modules()] == [part.training for part in model.modules()]
    assert longer.gradient_checkpointing is True
    assert torch.equal(logits(model), expected)


LADDER = {"pattern": "ladder", "largest": 8, "smallest": 2}


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ({"reach": LADDER}, "global"),
        ({"plan": HeadPlan(windows=(4, 4, 8, 17))}, "all"),
        ({"plan": HeadPlan(windows=(4, 4, 8, 16), firsts=(0, 0, 2, 0))}, "all"),
        ({"reach": LADDER | {"nope": True}}, None),
        ({"plan": HeadPlan(windows=(4, 4, 8, 16))}, None),
        ({"positions": "sinusoidal"}, None),
        ({"positions": "alibi"}, None),
    ],
    ids=["ladder", "wide windows", "first keys", "unrotated", "windows", "sinusoidal", "alibi"],
)
def test_angles_are_slowed_where_rotated_heads_see_past_the_context(options, heads):
    model = build(**options)
    assert meets_new_angles(model.config) == (heads is not None)
    if heads is None:
        words = "rotated heads that see past its context, got positions=.*; it takes longer sequences as it is$"
        with pytest.raises(ValueError, match=words):
            lengthened(model, 64)
    else:
        longer = lengthened(model, 64)
        assert longer.config.rope_scaling.heads == heads
        assert not torch.allclose(logits(longer), logits(model), atol=0.02)


def test_a_model_that_sees_both_sides_goes_on_to():
    config = GPTConfig(**SIZES, positions="rotary")
    longer = lengthened(GPT(config, causal=False).eval(), 64)
    tokens = torch.zeros(1, 20, dtype=torch.long)
    changed = tokens.clone()
    changed[0, -1] = 1
    assert not torch.equal(longer(tokens).logits[0, 0], longer(changed).logits[0, 0])


def test_what_cannot_be_lengthened_gets_one_clear_error():
    with pytest.raises(ValueError, match="model must be a GPT that is not compiled, got Linear"):
        lengthened(torch.nn.Linear(2, 2), 64)
    with pytest.raises(ValueError, match="context must be an integer from 1"):
        lengthened(build(), 64.5)
    with pytest.raises(ValueError, match="context must be above the model's 16, got 16"):
        lengthened(build(), 16)
    with pytest.raises(ValueError, match=r"past its context, got positions='learned': no angle can be slowed$"):
        lengthened(build(positions="learned"), 64)
    with pytest.raises(ValueError, match="rope_scaling must be None in a model to be lengthened, got 'yarn'"):
        lengthened(lengthened(build(), 64), 128)
