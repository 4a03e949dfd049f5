"""GPT-2 in the Hugging Face format: logits are transformers', from every source, and what does not fit is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from longshort import HeadPlan
from longshort.hf import use_head_plan
from longshort.hf.importers import from_gpt2

transformers = pytest.importorskip("transformers")

TIGHT = {"atol": 2e-5, "rtol": 2e-5}


def gpt2(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "initializer_range": 0.3}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | options)).eval()
    for parameter in model.parameters():  # gains and biases too, so that each must be in its place
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens():
    return torch.randint(97, (2, 60), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def assert_same(ours, theirs):
    torch.testing.assert_close(ours(tokens()).logits, theirs(tokens()).logits, **TIGHT)


def test_the_number_of_heads_has_two_names_as_in_transformers():
    theirs = gpt2(n_embd=48)
    assert transformers.GPT2Config(num_attention_heads=4).n_head == 4
    assert_same(from_gpt2(theirs.state_dict(), {"num_attention_heads": 4}), theirs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_function": "gelu"},
        {"activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-2},
        {"n_inner": 64},
        {"tie_word_embeddings": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"reorder_and_upcast_attn": True, "attn_implementation": "eager"},
    ],
)
def test_a_saved_model_gives_the_logits_of_transformers(tmp_path, options):
    theirs = gpt2(**options)
    theirs.save_pretrained(tmp_path)
    ours = from_gpt2(tmp_path)
    assert_same(ours, theirs)
    assert ours.config.layer_plans == (HeadPlan.full(4),) * 3
    assert not ours.training


def test_a_file_a_state_dict_and_a_model_give_the_same(tmp_path):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for ours in (
        from_gpt2(tmp_path / "model.safetensors"),
        from_gpt2(theirs.state_dict(), config),
        from_gpt2(theirs),
        from_gpt2(theirs.transformer.state_dict(), config),  # a bare GPT2Model, whose names have no prefix
    ):
        assert_same(ours, theirs)
    for source in (tmp_path, theirs):  # what is given stands in for the source's own
        assert from_gpt2(source, config | {"activation_function": "gelu"}).config.mlp == "gelu"


def test_shards_are_read_together(tmp_path):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert_same(from_gpt2(tmp_path), theirs)


def test_half_precision_weights_become_fp32(tmp_path):
    theirs = gpt2().bfloat16()
    theirs.save_pretrained(tmp_path)
    ours = from_gpt2(tmp_path)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    assert_same(ours, theirs.float())


def test_the_imported_model_shares_no_memory_with_the_source():
    theirs = gpt2(scale_attn_by_inverse_layer_idx=True)
    before = {name: x.clone() for name, x in theirs.state_dict().items()}
    ours = from_gpt2(theirs)
    with torch.no_grad():
        ours.embedding.weight.zero_()
    assert all(x.equal(before[name]) for name, x in theirs.state_dict().items())
    assert all(p.requires_grad for p in ours.parameters())


def test_masks_of_old_files_are_left_out(tmp_path):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    state["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, tmp_path / "model.safetensors")
    assert_same(from_gpt2(tmp_path), theirs)


def test_what_is_not_gpt2_is_refused(tmp_path):
    theirs = gpt2()
    with pytest.raises(ValueError, match="type gpt2, got 'llama'"):
        from_gpt2(theirs.state_dict(), {"model_type": "llama"})
    with pytest.raises(ValueError, match=r"activation_function must be one of gelu_new, .*got 'relu'"):
        from_gpt2(theirs.state_dict(), {"n_head": 4, "activation_function": "relu"})
    with pytest.raises(ValueError, match="n_head must divide the width 32, got 5"):
        from_gpt2(theirs.state_dict(), {"n_head": 5})
    for wrong in (0, "four"):
        with pytest.raises(ValueError, match=f"n_head must divide the width 32, got {wrong}"):
            from_gpt2(theirs.state_dict(), {"n_head": wrong})
    with pytest.raises(ValueError, match="the state dict: layer_norm_epsilon must be a number above 0, got None"):
        from_gpt2(theirs.state_dict(), {"n_head": 4, "layer_norm_epsilon": None})
    with pytest.raises(ValueError, match=r"unknown .*crossattention"):
        from_gpt2(gpt2(add_cross_attention=True))
    with pytest.raises(ValueError, match="multiple of the width 32, got 40"):
        from_gpt2(gpt2(n_inner=40))


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    theirs = gpt2()
    with pytest.raises(ValueError, match="'gpt2', which does not exist; load a model of the hub"):
        from_gpt2("gpt2")
    with pytest.raises(ValueError, match="config must be given with a state dict"):
        from_gpt2(theirs.state_dict())
    with pytest.raises(ValueError, match=r"no config.json"):
        from_gpt2(tmp_path)
    theirs.config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r": no model.safetensors; pickled weights are not read"):
        from_gpt2(tmp_path)
    (tmp_path / "model.safetensors").write_text("nothing of the kind")
    with pytest.raises(ValueError, match="must hold safetensors"):
        from_gpt2(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # else the index is not read
    for index in ("{nothing", "{}", "[]", '{"weight_map": []}'):
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ValueError, match=r"index.json must hold JSON with a weight_map of files, got none"):
            from_gpt2(tmp_path)
    for config, message in (("{nothing", "JSON, got: Expecting"), ("[]", "an object, got a list")):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ValueError, match=rf"config.json must hold {message}"):
            from_gpt2(tmp_path)


@torch.no_grad()
def test_head_plans_that_were_saved_come_along(tmp_path):
    theirs, ids = gpt2(attn_pdrop=0.0), torch.randint(97, (2, 64))
    plans = [HeadPlan(windows=(None, 3, 8, 90)), HeadPlan(windows=(2, 2, 4, None), firsts=(2, 0, 0, 0))]
    use_head_plan(theirs, [*plans, HeadPlan.full(4)])
    theirs.save_pretrained(tmp_path)
    ours = from_gpt2(tmp_path)
    assert ours.config.layer_plans[0].windows == (None, 3, 8, 64)
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, **TIGHT)
