"""The shell computes what GPT computes, and speaks to callers as transformers' own models do."""

import math

import pytest
import torch
from transformers.loss.loss_utils import ForCausalLMLoss

from longshort import GPT
from longshort.hf import LongShortCache, LongShortConfig, LongShortForCausalLM
from longshort.losses import LossSettings, transform_scores

from ..small import small_config
from .small import VARIANTS, gpt, shell

TOKENS = torch.randint(257, (2, 40), generator=torch.Generator().manual_seed(1))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_model_inside_with_and_without_a_cache(options):
    inside = gpt(**options)
    expected = inside(TOKENS).logits
    model = LongShortForCausalLM.from_gpt(inside)
    close(model(TOKENS, use_cache=False).logits, expected)
    with torch.no_grad():
        first = model(TOKENS[:, :30])
        second = model(TOKENS[:, 30:], past_key_values=first.past_key_values)
    close(torch.cat((first.logits, second.logits), dim=1), expected)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_saved_and_loaded_it_gives_the_same_bits(options, tmp_path):
    model = shell(**options)
    model.save_pretrained(tmp_path)
    loaded, report = LongShortForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert (tmp_path / "model.safetensors").is_file()
    assert loaded.model.config.layer_plans == model.model.config.layer_plans
    assert not any(tensor.is_meta for tensor in loaded.state_dict().values())
    for name, tensor in model.state_dict().items():
        assert tensor.equal(loaded.state_dict()[name]), name
    assert loaded(TOKENS).logits.equal(model(TOKENS).logits)


def test_a_model_of_the_exponentiated_loss_keeps_its_transform(tmp_path):
    inside = gpt(loss=LossSettings(exponent=0.5, linear_below=0.02))
    LongShortForCausalLM.from_gpt(inside).save_pretrained(tmp_path)
    loaded = LongShortForCausalLM.from_pretrained(tmp_path)
    loaded.resize_token_embeddings(inside.config.vocab_size + 3)
    for model in (inside, loaded.model):
        scores = model.scores(model.hidden(TOKENS)[0])
        torch.testing.assert_close(model(TOKENS).logits, transform_scores(scores, 0.5, 0.02))
    assert loaded(TOKENS, use_cache=False).logits[..., :-3].equal(inside(TOKENS).logits)


def test_a_fresh_model_is_drawn_as_gpt_draws_it():
    config = small_config(n_layers=8, init_std=0.1)
    weights = LongShortForCausalLM(LongShortConfig.from_gpt(config)).state_dict()
    assert weights["model.blocks.3.mlp.up.weight"].std().item() == pytest.approx(0.1, rel=0.1)
    assert weights["model.blocks.3.mlp.down.weight"].std().item() == pytest.approx(0.1 / 4, rel=0.1)


def test_what_a_folder_lacks_is_drawn_and_the_rest_is_loaded(tmp_path):
    model = shell(sigma_reparam=True)
    weights = model.state_dict()
    spreads = {"model.embedding.weight": 0.2, "model.blocks.1.mlp.down.weight": 0.2 / math.sqrt(4)}
    lost = {name: weights.pop(name) for name in spreads}
    model.save_pretrained(tmp_path, state_dict=weights)
    loaded = LongShortForCausalLM.from_pretrained(tmp_path).state_dict()
    for name, spread in spreads.items():
        assert not loaded[name].equal(lost[name])
        assert loaded[name].std().item() == pytest.approx(spread, rel=0.1)
    kept = [name for name in weights if name != "model.blocks.1.mlp.down.right_singular"]
    assert all(loaded[name].equal(weights[name]) for name in kept)


def test_another_precision_is_kept(tmp_path):
    shell().to(torch.float64).save_pretrained(tmp_path)
    loaded = LongShortForCausalLM.from_pretrained(tmp_path)
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float64}
    cache = LongShortCache(loaded.config)
    loaded.generate(TOKENS[:, :5], max_new_tokens=4, past_key_values=cache)
    assert cache.inner.layers[0].pools[0].k.dtype == torch.float64


@pytest.mark.parametrize("mode", ["mean", "items", "shifted"])
def test_the_loss_is_that_of_transformers(model, mode):
    labels = TOKENS.clone()
    labels[0, :7] = -100
    more = {"num_items_in_batch": torch.tensor(123)} if mode == "items" else {}
    output = model(TOKENS, labels=labels, **more)
    close(output.loss, ForCausalLMLoss(output.logits, labels, 257, **more))
    if mode == "shifted":
        shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
        close(model(TOKENS, shift_labels=shifted).loss, output.loss)


def test_gradients_of_the_loss_are_those_of_transformers():
    ours, theirs = shell().train(), shell().train()
    ours(TOKENS, labels=TOKENS).loss.backward()
    ForCausalLMLoss(theirs(TOKENS).logits, TOKENS, 257).backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(mine.grad, other.grad)


def test_gradient_checkpointing_gives_the_same_gradients(monkeypatch):
    plain, checkpointed = shell(positions="rotary").train(), shell(positions="rotary").train()
    enable = getattr(checkpointed, "activation_checkpointing_enable", None)  # its name from transformers 5.23 on
    (enable or checkpointed.gradient_checkpointing_enable)()
    calls, forward = [], checkpointed.model.blocks[0].forward
    monkeypatch.setattr(checkpointed.model.blocks[0], "forward", lambda *a, **k: (calls.append(1), forward(*a, **k))[1])
    for model in (plain, checkpointed):
        model(TOKENS, labels=TOKENS).loss.backward()
    assert len(calls) == 2
    for mine, other in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        close(mine.grad, other.grad)
    checkpointed.gradient_checkpointing_disable()
    assert not checkpointed.model.gradient_checkpointing


def test_without_a_cache_it_compiles_to_one_graph(model):
    tokens = torch.randint(257, (2, 12), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    inputs = {"attention_mask": mask, "labels": tokens, "use_cache": False}
    compiled, plain = torch.compile(model, backend="eager", fullgraph=True)(tokens, **inputs), model(tokens, **inputs)
    torch.testing.assert_close(compiled.loss, plain.loss)
    torch.testing.assert_close(compiled.logits[mask > 0], plain.logits[mask > 0])


def test_logits_can_be_had_of_some_positions_or_not_at_all(model):
    whole = model(TOKENS).logits
    close(model(TOKENS, logits_to_keep=3).logits, whole[:, -3:])
    close(model(TOKENS, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])
    output = model(TOKENS, labels=TOKENS, skip_logits=True)
    assert output.logits is None and output.loss > 0


def test_hidden_states_are_those_between_the_blocks(model):
    output = model(TOKENS, output_hidden_states=True)
    assert [tuple(state.shape) for state in output.hidden_states] == [(2, 40, 32)] * 3
    inside = model.model
    close(inside.norm(inside.blocks[1](output.hidden_states[1], positions=None)), output.hidden_states[2])
    close(output.hidden_states[2] @ inside.head_weight.T, output.logits)
    assert model(TOKENS).hidden_states is None
    assert not inside.norm._forward_hooks and not inside.blocks[0]._forward_hooks


def test_embeddings_stand_in_for_tokens(model):
    close(model(inputs_embeds=model.get_input_embeddings()(TOKENS)).logits, model(TOKENS).logits)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_gives_what_it_gives_alone(positions, side):
    model = shell(positions=positions)
    padding = torch.zeros(1, 6, dtype=torch.long)
    row, ones = TOKENS[:1, :34], torch.ones(1, 34, dtype=torch.long)
    joined = (padding, row) if side == "left" else (row, padding)
    mask = torch.cat([padding, ones] if side == "left" else [ones, padding], dim=1)
    batch = torch.cat((torch.cat(joined, dim=1), TOKENS[1:]))
    logits = model(batch, attention_mask=torch.cat((mask, torch.ones(1, 40, dtype=torch.long)))).logits
    close(logits[0, mask[0].bool()], model(row).logits[0])
    close(logits[1], model(TOKENS[1:]).logits[0])


def test_chunks_take_padding_on_the_right_alone():
    model, mask = shell(attention_chunk=16), torch.ones(2, 40, dtype=torch.long)
    mask[0, 34:] = 0
    close(model(TOKENS, attention_mask=mask).logits[0, :34], model(TOKENS[:1, :34]).logits[0])
    with pytest.raises(
        ValueError, match="attention_mask must not begin with padding in a model with attention_chunk=16"
    ):
        model(TOKENS, attention_mask=mask.flip(1))
    wide = shell(attention_chunk=40)  # all is in the first chunk
    logits = wide(TOKENS, attention_mask=mask.flip(1)).logits
    close(logits[0, 6:], wide(TOKENS[:1, 6:]).logits[0])


@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 40)], ids=str)
def test_positions_that_start_again_begin_a_new_document(model, shape):
    positions = torch.cat((torch.arange(15), torch.arange(25))).expand(shape)
    packed = model(TOKENS, position_ids=positions).logits
    alone = [model(part).logits for part in TOKENS.split((15, 25), dim=1)]
    close(packed, torch.cat(alone, dim=1))
    with torch.no_grad():
        close(model(TOKENS, position_ids=positions).logits, packed)


def test_a_cache_is_returned_only_where_no_gradients_are_wanted(model):
    assert model(TOKENS).past_key_values is None
    assert model(TOKENS).logits.requires_grad
    with torch.no_grad():
        assert model(TOKENS).past_key_values.get_seq_length() == 40
        assert model(TOKENS, use_cache=False).past_key_values is None
        assert model(TOKENS, labels=TOKENS, use_cache=True).past_key_values is None
    assert isinstance(model(TOKENS, return_dict=False), tuple)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input must be input_ids or inputs_embeds, got neither"),
        ({"input_ids": TOKENS, "inputs_embeds": torch.zeros(2, 40, 32)}, "input_ids or inputs_embeds, got both"),
        ({"input_ids": TOKENS, "labels": TOKENS[:, 1:]}, r"labels must have shape \(2, 40\), got \(2, 39\)"),
        (
            {"input_ids": TOKENS, "shift_labels": TOKENS.tolist()},
            r"shift_labels must have shape \(2, 40\), got list",
        ),
        (
            {"input_ids": TOKENS, "position_ids": list(range(40))},
            r"position_ids must have shape \(40,\) or \(2, 40\), .* got list",
        ),
        (
            {"input_ids": TOKENS, "shift_labels": TOKENS[:, 1:]},
            r"shift_labels must have shape \(2, 40\), got \(2, 39\)",
        ),
        (
            {"input_ids": TOKENS, "position_ids": torch.zeros(2, 39)},
            r"position_ids must have shape \(40,\) or \(2, 40\), those of the new tokens, got \(2, 39\)",
        ),
        ({"input_ids": TOKENS[0]}, r"input_ids must have shape \(batch, length\), got \(40,\)"),
        ({"inputs_embeds": torch.zeros(40, 32)}, r"inputs_embeds must have shape \(batch, length, hidden_size\)"),
        ({"input_ids": TOKENS, "logits_to_keep": -3}, "logits_to_keep must be 0 .* got -3"),
        ({"input_ids": TOKENS, "output_attentions": True}, "output_attentions must be False"),
        (
            {"input_ids": TOKENS, "attention_mask": torch.ones(2, 1, 40, 40)},
            r"attention_mask must have shape \(2, 40\)",
        ),
        ({"input_ids": TOKENS, "attention_mask": torch.ones(2, 39)}, r"attention_mask must have shape \(2, 40\)"),
        ({"input_ids": TOKENS.repeat(1, 4)}, "max_position_embeddings=128"),
        ({"input_ids": TOKENS.repeat(1, 4), "position_ids": torch.arange(160)[None]}, "max_position_embeddings=128"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        model(**inputs)


@pytest.mark.parametrize("tied", [False, True])
def test_the_vocabulary_can_grow(tied):
    model = shell(tie_embeddings=tied)
    before = model(TOKENS).logits
    model.resize_token_embeddings(300)
    assert model.config.vocab_size == model.model.config.vocab_size == 300
    after = model(torch.cat((TOKENS, torch.full((2, 1), 299)), dim=1)).logits
    assert after.shape == (2, 41, 300)
    close(after[:, :40, :257], before)


def test_the_shell_holds_the_very_weights_it_was_put_around():
    inside = GPT(small_config())
    model = LongShortForCausalLM.from_gpt(inside, eos_token_id=3)
    assert model.model is inside
    assert model.training and not LongShortForCausalLM.from_gpt(inside.eval()).training
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 3


def test_a_model_that_sees_what_follows_is_refused():
    with pytest.raises(ValueError, match="gpt must be causal"):
        LongShortForCausalLM.from_gpt(GPT(small_config(), causal=False))


@pytest.mark.filterwarnings("ignore:You are calling .generate")  # 5.17 takes a part for the model
@pytest.mark.filterwarnings("ignore::UserWarning:accelerate")
@pytest.mark.parametrize("part", ["embedding", "position_embedding", "blocks.0", "blocks.1", "norm", "head"])
def test_with_any_part_offloaded_it_writes_and_scores_the_same(part, model, tmp_path):
    pytest.importorskip("accelerate")
    model.save_pretrained(tmp_path / "model")
    parts = ["embedding", "position_embedding", "dropout", "blocks.0", "blocks.1", "norm", "head"]
    places = {f"model.{name}": "disk" if name == part else "cpu" for name in parts}
    loaded = LongShortForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=str(tmp_path / "offloaded")
    )
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    inputs["attention_mask"][0, :7] = 0
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 256}
    assert loaded.generate(**inputs, **options).equal(model.generate(**inputs, **options))
    close(loaded(**inputs, labels=TOKENS).loss, model(**inputs, labels=TOKENS).loss)
