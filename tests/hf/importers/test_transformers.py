"""Dense models of transformers: logits are theirs, from folders on disk, and what a `GPT` cannot be is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from longshort import GPT, GPTConfig, HeadPlan
from longshort.cli import app
from longshort.hf import LongShortForCausalLM, use_head_plan, write_folder
from longshort.hf.importers import from_transformers
from longshort.train import load_model

transformers = pytest.importorskip("transformers")

TIGHT = {"atol": 3e-5, "rtol": 1e-4}  # ARM processors round differently from x86
LENGTH, WINDOW, WIDE = 90, 20, 200
SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SLIDING = {"sliding_window": WINDOW}
LATER_LAYERS = {"use_sliding_window": True, "max_window_layers": 2, **SLIDING}
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 10, **SLIDING}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"rope_theta": 5e5, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 2.0, "beta_fast": 8.0, "original_max_position_embeddings": 64}
RARE = {"truncate": False, "beta_slow": 2.0, "attention_factor": 1.3, "partial_rotary_factor": 1.0}

CASES = {
    "llama": ("Llama", {}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3}),
    "llama, biases in attention": ("Llama", {"attention_bias": True}),
    "llama 3": ("Llama", {"head_dim": 12, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "mistral": ("Mistral", SLIDING),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen 2": ("Qwen2", {**LATER_LAYERS, "tie_word_embeddings": True}),
    "qwen 3": ("Qwen3", {"head_dim": 24, "rms_norm_eps": 1e-3, **LATER_LAYERS}),
    "qwen 3, yarn": ("Qwen3", {"head_dim": 24, "rope_parameters": YARN | {"rope_theta": 1e6, **RARE}}),
    "gemma 2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma 3": ("Gemma3", {**GEMMA, "sliding_window_pattern": 3, "rms_norm_eps": 1e-3, "attention_bias": True}),
    "gemma 3, scaled": (
        "Gemma3",
        {**GEMMA, "sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gemma 3, untied": ("Gemma3", {**GEMMA, "tie_word_embeddings": False, "query_pre_attn_scalar": 24}),
    "olmo 2": ("Olmo2", {}),
    "olmo 3": ("Olmo3", {**SLIDING, "num_key_value_heads": None, "rms_norm_eps": 1e-3}),
    "olmo 3, yarn": ("Olmo3", {**SLIDING, "rope_scaling": YARN}),
    "smollm 3": ("SmolLM3", {"no_rope_layer_interval": 2, "attention_bias": True}),
    "smollm 3, windows": ("SmolLM3", {"no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True, **SLIDING}),
    "smollm 3, yarn": ("SmolLM3", {"rope_parameters": YARN | {"rope_theta": 1e4}}),
    "exaone 4": ("Exaone4", {**SLIDING, "rms_norm_eps": 1e-3, "rope_parameters": LLAMA3}),
    "exaone 4, no window": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
}


def build(name):
    family, options = CASES[name]
    config_class = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    config = getattr(transformers, config_class)(**SIZES | options, attn_implementation="eager")
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains and biases too, so that each must be in its place
            parameter.normal_(std=0.3)
    return model


def tokens():
    return torch.randint(97, (2, LENGTH), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits(model):
    return model(tokens()).logits


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_gives_the_logits_of_transformers(name, tmp_path):
    theirs = build(name)
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(from_transformers(tmp_path)), logits(theirs), **TIGHT)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("gemma 3, scaled", "olmo 3, yarn")])
def test_head_plans_that_were_saved_come_along(name, tmp_path):
    theirs = build(name)
    without = logits(theirs)
    plans = [HeadPlan(windows=(None, None, 7, 9)), HeadPlan(windows=(5, 5, 30, 30), firsts=(3, 3, 0, 0))]
    use_head_plan(theirs, [HeadPlan.full(4), plans[1], plans[0], HeadPlan(windows=(400, 400, 2, 2))])
    theirs.save_pretrained(tmp_path)
    ours = from_transformers(tmp_path)
    torch.testing.assert_close(logits(ours), logits(theirs), atol=3e-5, rtol=1e-4)
    assert (logits(ours) - without).abs().max() > 0.1
    theirs.set_attn_implementation("eager")
    theirs.save_pretrained(tmp_path / "off")
    torch.testing.assert_close(logits(from_transformers(tmp_path / "off")), without, **TIGHT)


def test_head_plans_that_do_not_fit_are_refused(tmp_path):
    theirs = build("olmo 3, yarn")
    use_head_plan(theirs, HeadPlan(windows=(None, None, 7, 7)))
    with pytest.raises(ValueError, match=r"must leave every head of layer 3 global, got .* positions are scaled"):
        from_transformers(theirs)
    values = build("llama").config.to_dict() | {"attn_implementation": "longshort"}
    for plans, words in (
        ([{"windows": [4] * 4}], "must be 4 plans of 4 heads, got 1 of 4 heads"),
        ([{"windows": [4] * 2}] * 4, "got 4 of 2 heads"),
        ([{"window": 4}] * 4, "head_plans must be a plan per layer, got: plan must have the keys windows"),
        (7, "head_plans must be a plan per layer"),
        ([{"windows": [None, 4, 4, 4]}] * 4, "all global or all local in each 2 query heads"),
    ):
        with pytest.raises(ValueError, match=words):
            from_transformers(build("llama").state_dict(), values | {"head_plans": plans})


@pytest.fixture
def fp32_is_float64(monkeypatch):
    """transformers computes norms, angles and softmax in fp32 whatever the weights are."""
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("fp32_is_float64")
@pytest.mark.parametrize("name", CASES)
def test_the_formula_is_theirs_in_float64(name):
    theirs = build(name)
    ours = from_transformers(theirs)
    assert ours.embedding.weight.dtype == torch.float64
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", ["mistral", "qwen 2", "qwen 3", "gemma 2", "gemma 3", "olmo 3", "exaone 4"])
def test_windows_are_those_of_the_layers(name):
    ours = from_transformers(build(name))
    expected = {
        "mistral": [WINDOW] * 4,
        "qwen 2": [None, None, WINDOW, WINDOW],
        "qwen 3": [None, None, WINDOW, WINDOW],
        "gemma 2": [WINDOW, None] * 2,
        "gemma 3": [WINDOW, WINDOW, None, WINDOW],
        "olmo 3": [WINDOW] * 3 + [None],
        "exaone 4": [WINDOW] * 3 + [None],
    }
    assert [plan.windows for plan in ours.config.layer_plans] == [(window,) * 4 for window in expected[name]]
    plain = GPT(replace(ours.config, reach=None)).eval()
    plain.load_state_dict(ours.state_dict())
    assert not torch.allclose(logits(plain), logits(ours), atol=1e-2)


def test_only_global_layers_of_gemma_3_are_slowed_and_bases_differ():
    config = from_transformers(build("gemma 3, scaled")).config
    assert (config.rope_scaling.kind, config.rope_scaling.heads, config.rope_scaling.factor) == ("linear", "global", 8)
    assert config.rope_theta == 1e6
    assert {(layer.plan.n_global, layer.local_base) for layer in config.reach} == {(0, 1e4), (4, None)}


def test_layers_that_are_not_rotated_are_those_of_the_model():
    rotated = {
        "smollm 3": [True, False, True, False],
        "smollm 3, windows": [True, False, False, True],
        "exaone 4": [True, True, True, False],
    }
    for name, layers in rotated.items():
        reach = from_transformers(build(name)).config.reach
        assert [(layer.local_share, layer.global_share) for layer in reach] == [
            (1.0, 1.0) if r else (0.0, 0.0) for r in layers
        ]
    assert from_transformers(build("exaone 4, no window")).config.reach is None
    theirs = build("smollm 3")
    with pytest.raises(ValueError, match=r"no_rope_layers must have one entry for each of 4 layers, got \[1, 0\]"):
        from_transformers(theirs.state_dict(), theirs.config.to_dict() | {"no_rope_layers": [1, 0]})
    values = build("exaone 4").config.to_dict() | {"layer_types": None, "sliding_window": None}
    with pytest.raises(ValueError, match=r"config.json must be that of a model of type exaone4, got: .*zero"):
        from_transformers(theirs.state_dict(), values)


@pytest.mark.parametrize("name", ["llama 3", "gemma 3, scaled", "olmo 3, yarn", "smollm 3", "exaone 4"])
@pytest.mark.parametrize("static", [False, True])
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_sequence(name, static):
    ours = from_transformers(build(name))
    cache = ours.new_cache(2, static=static)
    steps = [ours(tokens()[:, :50], cache=cache).logits]
    steps += [ours(tokens()[:, [place]], cache=cache).logits for place in range(50, LENGTH)]
    torch.testing.assert_close(torch.cat(steps, 1), logits(ours), atol=5e-5, rtol=5e-5)


def test_a_file_shards_a_state_dict_and_a_model_give_the_same(tmp_path):
    theirs = build("gemma 3")
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    expected = logits(theirs)
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    for source, values in (
        (tmp_path / "whole" / "model.safetensors", None),
        (tmp_path / "shards", None),
        (theirs.state_dict(), config),
        (theirs, None),
    ):
        torch.testing.assert_close(logits(from_transformers(source, values)), expected, **TIGHT)


def test_shards_of_an_earlier_save_are_not_read_beside_a_whole_file(tmp_path):
    """transformers leaves their index when it saves again, and opens the whole file."""
    build("gemma 3").save_pretrained(tmp_path, max_shard_size="20KB")
    again = build("gemma 3")
    again.get_input_embeddings().weight.data.mul_(2)
    again.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    torch.testing.assert_close(logits(from_transformers(tmp_path)), logits(again), **TIGHT)


def test_configurations_of_older_files_are_read(tmp_path):
    """Flat rotary fields, a pattern in place of types of layers, and tables of angles among the weights."""
    theirs = build("gemma 3, scaled")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"], config["layer_types"]
    config |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2, "num_experts": 0}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    state = load_file(tmp_path / "model.safetensors")
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(12)
    save_file(state, tmp_path / "model.safetensors")
    torch.testing.assert_close(logits(from_transformers(tmp_path)), logits(theirs), **TIGHT)


def test_names_of_a_compiled_or_distributed_model_are_read():
    theirs = build("qwen 3")
    state = {f"module._orig_mod.{name}": x for name, x in theirs.state_dict().items()}
    torch.testing.assert_close(logits(from_transformers(state, theirs.config.to_dict())), logits(theirs), **TIGHT)


@pytest.mark.parametrize(
    ("name", "key", "spelling", "mlp"),
    [("llama", "hidden_act", "swish", "swiglu"), ("gemma 2", "hidden_activation", "gelu_new", "geglu")],
)
def test_other_names_of_an_activation_are_known(name, key, spelling, mlp):
    theirs = build(name)
    assert from_transformers(theirs.state_dict(), theirs.config.to_dict() | {key: spelling}).config.mlp == mlp


def test_half_precision_weights_become_fp32(tmp_path):
    build("qwen 3").bfloat16().save_pretrained(tmp_path)
    ours = from_transformers(tmp_path)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    theirs = transformers.Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(logits(ours), logits(theirs), **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize("name", ["olmo 3", "olmo 3, yarn", "gemma 3", "exaone 4"])  # of one base, two, none
def test_a_window_beyond_the_context_keeps_its_width(name):
    theirs = build(name)
    config = theirs.config.to_dict() | {"sliding_window": WIDE}
    ours = from_transformers(theirs.state_dict(), config)
    assert ours.config.context == 128 and ours.config.layer_plans[0].windows == (WIDE,) * 4
    theirs.config.sliding_window = WIDE
    longer = torch.randint(97, (1, 300), generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(logits(ours), logits(theirs), **TIGHT)
    torch.testing.assert_close(ours(longer).logits, theirs(longer).logits, atol=1e-4, rtol=1e-3)


def test_layers_without_a_bias_get_zeros_where_others_have_one():
    ours = from_transformers(build("qwen 2"))
    attention, mlp = ours.blocks[0].attention, ours.blocks[0].mlp
    assert attention.qkv.bias.count_nonzero() == len(attention.qkv.bias)
    assert not any(layer.bias.any() for layer in (attention.out, mlp.up, mlp.down))


@pytest.mark.parametrize("name", ["llama, biases", "gemma 3, scaled", "gemma 2", "olmo 3, yarn"])
def test_exported_models_come_back_whole(name, tmp_path):
    ours = from_transformers(build(name))
    write_folder(ours, None, tmp_path / "exported", end=2)
    again = LongShortForCausalLM.from_pretrained(tmp_path / "exported")
    assert torch.equal(logits(again), logits(ours))
    back = from_transformers(tmp_path / "exported")
    assert torch.equal(logits(back), logits(ours))
    assert (back.config.reach, back.config.rope_scaling) == (ours.config.reach, ours.config.rope_scaling)


def test_the_command_makes_a_run_that_gives_their_logits(tmp_path):
    theirs = build("gemma 3, scaled")
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    shown = CliRunner().invoke(app, ["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    model, _ = load_model(tmp_path / "run")
    torch.testing.assert_close(logits(model), logits(theirs), **TIGHT)


MOE = {"num_local_experts": 8, "model_type": "mixtral"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (MOE, r"a model of type 'mixtral' cannot be imported: it is a mixture of experts \(num_local_experts=8\)"),
        ({"model_type": "gemma3"}, "it reads images too; save its language model, of type gemma3_text"),
        ({"model_type": "cohere2"}, "model_type must be one of gpt2, longshort, llama, "),
        ({"quantization_config": {"quant_method": "fp8"}}, "its weights are quantized"),
        ({"hidden_act": "relu"}, "activation of the gated MLP must be one of silu, .*, got 'relu'"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types must be .*, got 'chunked_attention'"),
        ({"layer_types": ["sliding_attention"] * 4, "use_sliding_window": False}, "sliding_window must be set"),
        (
            {"num_attention_heads": "four"},
            r"config.json must be that of a model of type qwen3, got: .*num_attention_heads",
        ),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope_type must be one of"),
        (
            {"rope_parameters": YARN | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 1.0}},
            "a rope of type yarn must have factor, .* alone, got mscale, mscale_all_dim",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor must be 1 in these families, got 0.5",
        ),
    ],
)
def test_what_a_gpt_cannot_be_is_refused_and_nothing_is_written(changed, message, tmp_path):
    build("qwen 3").save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    (tmp_path / "theirs" / "model.safetensors").write_text("not read")
    with pytest.raises(ValueError, match=message):
        from_transformers(tmp_path / "theirs")
    shown = CliRunner().invoke(app, ["import", str(tmp_path / "theirs"), "--out", str(tmp_path / "run")])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: ") and len(shown.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("llama", {"rope_parameters": {"rope_theta": None}}, "rope_theta must be a number above 1, .*, got None"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": []}}, r"rope_type must be .*, got \[\]"),
        ("llama", {"rope_parameters": {"full_attention": 3}}, "rope_parameters must be a mapping, .*, got 3"),
        ("llama", {"hidden_size": None}, "config.json must be that of a model of type llama, got: .*hidden_size"),
        ("exaone 4", {"num_attention_heads": 0}, "num_attention_heads must be an integer from 1 to 10000, got 0"),
        ("mistral", {"sliding_window": -1}, "sliding_window must be an integer from 1 to .*, got -1"),
        ("gemma 2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a number above 0, got 0"),
        ("ours", {"hidden_size": None}, "config.json .* longshort, got: hidden_size must be an integer .*, got None"),
        ("ours", {"intermediate_size": "x"}, "intermediate_size must be None or an integer from 1 to .*, got 'x'"),
        ("ours", {"hidden_act": []}, r"hidden_act must be one of gelu, .*, got \[\]"),
        ("ours", {"head_windows": [3]}, r"head_windows must be None or a list for each layer, got \[3\]"),
    ],
)
def test_values_of_another_kind_are_refused_by_name(name, changed, message):
    theirs = LongShortForCausalLM.from_gpt(GPT(GPTConfig.preset("tiny"))) if name == "ours" else build(name)
    with pytest.raises(ValueError, match=f"^the state dict: .*{message}"):
        from_transformers(theirs.state_dict(), theirs.config.to_dict() | changed)


def test_gemmas_that_are_not_causal_or_capped_are_refused():
    theirs = build("gemma 3")
    for changed, message in (
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention must be False"),
        ({"attn_logit_softcapping": 5.0}, "attn_logit_softcapping must be null for gemma3_text, got 5.0"),
        ({"rope_parameters": _both("linear", "llama3")}, "rope_parameters of sliding layers must be those of full"),
    ):
        with pytest.raises(ValueError, match=message):
            from_transformers(theirs.state_dict(), theirs.config.to_dict() | changed)


def _both(full, sliding):
    kinds = {"linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, "llama3": LLAMA3}
    return {"full_attention": kinds[full], "sliding_attention": kinds[sliding]}


def test_tensors_that_do_not_fit_are_named_as_in_the_source():
    theirs = build("qwen 3")
    config, state = theirs.config.to_dict(), dict(theirs.state_dict())
    for changed, message in (
        ({"model.layers.3.mlp.up_proj.weight": None}, r"missing layers.3.mlp.up_proj.weight; unknown nothing"),
        ({"model.layers.0.self_attn.o_proj.bias": torch.zeros(32)}, "missing nothing; unknown layers.0.self_attn.o_"),
        ({"score.weight": torch.zeros(2, 32)}, "unknown score.weight"),
        ({"lm_head.weight": None}, "missing lm_head.weight"),
        ({"model.norm.weight": torch.zeros(31)}, r"norm.weight must have the shape \(32,\), got \(31,\)"),
        ({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}, "must hold floating-point numbers .* torch.int8"),
        ({"model.norm.weight": torch.zeros(32).to(torch.float8_e5m2)}, "16 bits or more, got torch.float8_e5m2"),
        ({"model.norm.weight": "one"}, "norm.weight must be a tensor, got str"),
    ):
        tensors = {name: x for name, x in (state | changed).items() if x is not None}
        with pytest.raises(ValueError, match=message):
            from_transformers(tensors, config)
    tied = config | {"tie_word_embeddings": True}
    with pytest.raises(ValueError, match=r"lm_head.weight must equal embed_tokens.weight with tie_word_embeddings"):
        from_transformers(state, tied)
    ours = from_transformers(state | {"lm_head.weight": state["model.embed_tokens.weight"]}, tied)
    assert ours.head is None
