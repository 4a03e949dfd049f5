"""What trainers with a loss of their own ask for: hidden states without a head, and a head that is never None."""

import copy

import pytest
import torch
from safetensors import safe_open

from longshort.hf import LongShortForCausalLM
from longshort.losses import LossSettings

from .small import shell

TOKENS = torch.randint(257, (2, 40), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(TOKENS)
MASK[0, :7] = 0


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_states_of_the_base_model_times_the_head_are_the_logits(tied):
    model = shell(tie_embeddings=tied)
    states = model.base_model(input_ids=TOKENS, attention_mask=MASK, use_cache=False).last_hidden_state
    expected = model(TOKENS, attention_mask=MASK).logits
    head = model.get_output_embeddings()
    assert head.bias is None
    torch.testing.assert_close(states @ head.weight.T, expected)
    torch.testing.assert_close(head(states), expected)


def test_gradients_through_the_base_model_are_those_of_the_model():
    one, other = shell(tie_embeddings=True).train(), shell(tie_embeddings=True).train()
    one(TOKENS).logits.square().sum().backward()
    other.get_output_embeddings()(other.base_model(TOKENS).last_hidden_state).square().sum().backward()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_base_model_serves_embeddings_caches_and_hidden_states_as_the_model_does(model):
    expected = model(TOKENS, output_hidden_states=True).hidden_states
    output = model.base_model(inputs_embeds=model.get_input_embeddings()(TOKENS), output_hidden_states=True)
    assert len(output.hidden_states) == len(expected)
    torch.testing.assert_close(output.last_hidden_state, expected[-1])
    assert output.past_key_values is None
    with torch.no_grad():
        first = model.base_model(TOKENS[:, :30])
        second = model.base_model(TOKENS[:, 30:], past_key_values=first.past_key_values, return_dict=False)
    torch.testing.assert_close(second[0], expected[-1][:, 30:])


def test_the_base_model_has_the_weights_and_the_mode_of_the_model():
    model = shell().train()
    model.model.dropout.eval()
    part = model.base_model
    assert part.training and not model.model.dropout.training
    assert {id(weight) for weight in part.parameters()} == {id(weight) for weight in model.parameters()}
    assert list(model.state_dict()) == [f"model.{name}" for name in model.model.state_dict()]


def test_a_model_whose_logits_are_not_the_head_times_the_states_has_no_base_model_to_call():
    with pytest.raises(ValueError, match=r"score_exponent must be 1 for base_model, got 0\.5"):
        shell(loss=LossSettings(exponent=0.5)).base_model(TOKENS)
    with pytest.raises(ValueError, match=r"final_logit_softcapping must be None for base_model, got 9\.0"):
        shell(logit_softcap=9.0).base_model(TOKENS)


def test_a_tied_head_is_neither_counted_nor_saved(tmp_path):
    model = shell(tie_embeddings=True)
    assert model.num_parameters() == model.model.n_parameters()
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert sorted(file.keys()) == sorted(f"model.{name}" for name in model.model.state_dict())
    loaded, report = LongShortForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_a_tied_head_follows_the_embedding():
    model = shell(tie_embeddings=True)
    twin = copy.deepcopy(model)
    model.resize_token_embeddings(300)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.model.head is None and model(TOKENS).logits.shape[-1] == 300
    assert twin.get_output_embeddings().weight is twin.get_input_embeddings().weight
    assert len(twin.get_output_embeddings().weight) == 257


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_found_among_the_modules(tied):
    # PEFT looks for its name there, to leave it out of "all-linear".
    model = shell(tie_embeddings=tied)
    names = [name for name, module in model.named_modules() if module is model.get_output_embeddings()]
    assert names == ["tied_head" if tied else "model.head"]
