"""The model without its head, opened by Auto classes: hidden states, and a class for each sequence."""

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer, TrainingArguments

from longshort.hf import LongShortForSequenceClassification, LongShortModel

from .small import shell

TOKENS = torch.randint(257, (2, 40), generator=torch.Generator().manual_seed(1))
MASK = torch.ones_like(TOKENS)
MASK[0, :7] = 0


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied"])
def saved(request, tmp_path_factory):
    """A causal language model and its folder."""
    model, folder = shell(tie_embeddings=request.param), tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, folder


def classifier(folder, **options):
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, **options).eval()


def test_auto_model_opens_a_language_model_without_its_head(saved):
    causal, folder = saved
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, LongShortModel) and not any(report.values()), report
    assert model.base_model is model and model.get_output_embeddings() is None
    assert not [name for name, _ in model.named_parameters() if "head" in name]
    wanted = {"attention_mask": MASK, "output_hidden_states": True}
    expected = causal(TOKENS, **wanted).hidden_states
    found = model.eval()(TOKENS, **wanted)
    torch.testing.assert_close(found.hidden_states, expected)
    torch.testing.assert_close(found.last_hidden_state, expected[-1])


@torch.no_grad()
def test_auto_model_continues_from_its_cache(saved):
    model = AutoModel.from_pretrained(saved[1]).eval()
    first = model(TOKENS[:, :30])
    second = model(inputs_embeds=model.get_input_embeddings()(TOKENS[:, 30:]), past_key_values=first.past_key_values)
    expected = model(TOKENS, return_dict=False)[0][:, 30:]
    torch.testing.assert_close(second.last_hidden_state, expected, atol=1e-5, rtol=1e-5)


def test_hidden_states_are_given_also_where_the_head_changes_its_scores(tmp_path):
    shell(logit_softcap=9.0).save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path)(TOKENS).last_hidden_state.shape == (2, 40, 32)


@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_the_score_is_that_of_the_last_token_that_is_not_padding(saved, side):
    model = classifier(saved[1], pad_token_id=0)
    assert isinstance(model, LongShortForSequenceClassification)
    text = TOKENS.clamp(min=1)
    alone = torch.cat([model(text[:1, :25]).logits, model(text[1:]).logits])
    padding = torch.zeros(15, dtype=torch.long)
    short = torch.cat([padding, text[0, :25]] if side == "left" else [text[0, :25], padding])
    batch = torch.stack([short, text[1]])
    mask = None if side == "none" else (batch > 0).long()  # with none, padding on the right is seen by later padding
    torch.testing.assert_close(model(batch, attention_mask=mask).logits, alone, atol=1e-5, rtol=1e-5)
    states = model.base_model(text[1:]).last_hidden_state[:, -1]
    torch.testing.assert_close(model.score(states), alone[1:])


def test_an_end_that_is_also_the_padding_counts_where_a_mask_shows_it(saved):
    model = classifier(saved[1], pad_token_id=9)
    text = torch.tensor([[1, 2, 9]])
    states = model.score(model.base_model(text).last_hidden_state)
    torch.testing.assert_close(model(text, attention_mask=torch.ones_like(text)).logits, states[:, 2])
    torch.testing.assert_close(model(text).logits, states[:, 1])


def test_a_classifier_is_saved_and_loaded_with_its_scores(saved, tmp_path):
    model = classifier(saved[1])
    model.save_pretrained(tmp_path)
    again, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    torch.testing.assert_close(again.eval()(TOKENS).logits, model(TOKENS).logits)
    assert model.config.auto_map["AutoModelForSequenceClassification"].endswith(".LongShortForSequenceClassification")
    assert AutoModelForCausalLM.from_pretrained(saved[1]).config.num_labels == 2  # transformers' own default


def test_new_scores_are_drawn_as_small_as_the_other_weights(saved):
    weight = classifier(saved[1]).score.weight
    assert 0.1 < weight.std() < 0.3  # init_std of these models is 0.2


def test_the_trainer_teaches_a_classifier(saved, tmp_path):
    model = classifier(saved[1])
    rows = [{"input_ids": TOKENS[i % 2] * 0 + i % 3, "labels": i % 3} for i in range(12)]
    options = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "per_device_train_batch_size": 6}
    arguments = TrainingArguments(output_dir=str(tmp_path), max_steps=30, learning_rate=1e-2, **options)
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    found = model.eval()(torch.stack([row["input_ids"] for row in rows])).logits.argmax(dim=1)
    assert found.tolist() == [row["labels"] for row in rows]
