"""The configuration: presets, ways to give the reach of the heads, JSON round trip, and every error."""

import json
from dataclasses import replace
from typing import Any

import pytest

from longshort import GPTConfig, HeadPlan
from longshort.losses import LossSettings
from longshort.model import PRESETS
from longshort.nn import RopeScaling

SMALL: dict[str, Any] = {"vocab_size": 50, "context": 32, "n_layers": 2, "width": 24, "n_heads": 4}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid_and_survives_json(name: str) -> None:
    config = GPTConfig.preset(name)
    assert GPTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert all(0 < plan.n_global < plan.n_heads for plan in config.layer_plans)  # LS-attention


def test_plans_survive_json() -> None:
    plans = (HeadPlan.full(4), HeadPlan(windows=(None, 3, 2, 1), slopes=(0.0, 0.5, 0.25, 0.1)))
    for config in (GPTConfig(**SMALL, plans=plans), GPTConfig(**SMALL, plan=plans[1])):
        assert GPTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_paper_preset_is_the_authors_model() -> None:
    config = GPTConfig.preset("paper-6m")
    assert (config.n_layers, config.width, config.n_heads, config.context) == (6, 192, 6, 2048)
    assert (config.bias, config.tie_embeddings, config.positions, config.dropout) == (False, False, "learned", 0.0)
    assert config.layer_plans == (HeadPlan.long_short(n_heads=6, n_global=1, window=50),) * 6


def test_preset_takes_overrides() -> None:
    config = GPTConfig.preset("paper-6m", window=100, context=8192, qk_norm="head")
    assert (config.window, config.context, config.qk_norm, config.width) == (100, 8192, "head", 192)


@pytest.mark.parametrize(
    "override", [{"plan": HeadPlan.full(12)}, {"n_global": 12}, {"plans": [HeadPlan.full(12)] * 12}]
)
def test_preset_is_easily_made_plain(override: dict[str, Any]) -> None:
    assert GPTConfig.preset("gpt2-small", **override).layer_plans == (HeadPlan.full(12),) * 12


def test_heads_are_global_where_nothing_is_said() -> None:
    assert GPTConfig(**SMALL).layer_plans == (HeadPlan.full(4),) * 2


def test_each_layer_may_have_its_own_plan() -> None:
    plans = (HeadPlan.full(4), HeadPlan.long_short(n_heads=4, n_global=0, window=7))
    assert GPTConfig(**SMALL, plans=plans).layer_plans == plans


def test_alibi_gives_slopes_to_plans_without_them() -> None:
    own = HeadPlan(windows=(None, 3, 3, 3), slopes=(0.0, 0.1, 0.1, 0.1))
    config = GPTConfig(**SMALL, plans=(HeadPlan.full(4), own), positions="alibi")
    assert config.layer_plans == (HeadPlan.full(4).with_alibi(), own)


def test_config_is_frozen_hashable_and_keyword_only() -> None:
    config = GPTConfig(**SMALL, plans=[HeadPlan.full(4)] * 2)  # type: ignore[arg-type]
    assert hash(config) == hash(GPTConfig(**SMALL, plans=(HeadPlan.full(4),) * 2))
    with pytest.raises(AttributeError):
        config.width = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        GPTConfig(50, 32, 2, 24, 4)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be an integer from 1 to .*, got 0"),
        ({"context": 2.5}, "context must be an integer from 1 to .*, got 2.5"),
        ({"n_layers": True}, "n_layers must be an integer from 1 to .*, got True"),
        ({"width": "24"}, "width must be an integer from 1 to .*, got '24'"),
        ({"width": 25}, "width must be a multiple of n_heads=4, or head_dim set, got 25"),
        ({"n_heads": -1}, "n_heads must be an integer from 1 to .*, got -1"),
        ({"n_kv_heads": 3}, "n_kv_heads must be a divisor of n_heads=4, got 3"),
        ({"smoothing": 0}, "smoothing must be None or an integer from 1 to .*, got 0"),
        ({"smoothing": 4, "smoothing_side": "centred"}, "smoothing must be odd where smoothing_side is centred, got 4"),
        ({"smoothing_side": "right"}, "smoothing_side must be one of causal, centred, leading, got 'right'"),
        ({"smoothing_stage": "now"}, "smoothing_stage must be one of after, before, got 'now'"),
        ({"attention_chunk": 0}, "attention_chunk must be None or an integer from 1 to .*, got 0"),
        ({"n_kv_heads": 0}, "n_kv_heads must be None or an integer from 1 to .*, got 0"),
        ({"head_dim": 0}, "head_dim must be None or an integer from 1 to .*, got 0"),
        ({"head_dim": 5, "positions": "rotary"}, "head_dim must be even with rotary positions, got 5"),
        (
            {"width": 25, "head_dim": 4, "positions": "sinusoidal"},
            "width must be even with sinusoidal positions, got 25",
        ),
        ({"ff_multiplier": 0}, "ff_multiplier must be an integer from 1 to .*, got 0"),
        ({"n_global": 1}, "window must be an integer >= 1 where some heads are local, got None"),
        ({"n_global": 5, "window": 3}, "n_global must be None or an integer from 0 to n_heads=4, got 5"),
        ({"n_global": True, "window": 3}, "n_global must be None or an integer from 0 to n_heads=4, got True"),
        ({"window": 3}, "window must be None unless n_global is set, got 3"),
        ({"window": 3, "reach": "full"}, "window must be None beside reach, which gives heads their windows, got 3"),
        ({"n_global": 1, "window": 0}, "window must be None or an integer from 1 to .*, got 0"),
        ({"n_global": 1, "window": 3, "plan": HeadPlan.full(4)}, "plan, plans, or reach, got n_global and plan"),
        ({"plan": HeadPlan.full(4), "plans": (HeadPlan.full(4),) * 2}, "plan, plans, or reach, got plan and plans"),
        ({"plan": HeadPlan.full(3)}, "plan must be a HeadPlan of n_heads=4 heads, got HeadPlan"),
        ({"plan": (None, 1, 1, 1)}, r"plan must be None or a HeadPlan, \{windows: \[\.\.\.\]\} in a file, got "),
        ({"plans": (HeadPlan.full(4),)}, "plans must be one plan for each of n_layers=2, got 1"),
        ({"plans": (HeadPlan.full(4), HeadPlan.full(5))}, r"plans\[1\] must be a HeadPlan of n_heads=4 heads"),
        ({"plans": HeadPlan.full(4)}, "plans must be None or a tuple of HeadPlans, got HeadPlan"),
        (
            {"n_global": 1, "window": 3, "n_kv_heads": 2},
            r"n_global must be a multiple of n_heads / n_kv_heads = 2, got 1",
        ),
        (
            {"plan": HeadPlan(windows=(3, None, None, 3)), "n_kv_heads": 2},
            "plan must be all global or all local in each 2",
        ),
        ({"positions": "rope"}, "positions must be one of learned, rotary, sinusoidal, alibi, none, got 'rope'"),
        ({"restart_positions": 1}, "restart_positions must be True or False, got 1"),
        ({"rope_theta": 0}, "rope_theta must be a number from 1e-30 to 1e.30, got 0"),
        ({"activation": "relu"}, "activation must be gelu or gelu_tanh, got 'relu'"),
        ({"activation": "gelu", "mlp": "swiglu"}, "activation='gelu' and mlp='swiglu' set the same thing; give mlp"),
        ({"mlp": "silu"}, "mlp must be one of gelu, gelu_tanh, swiglu, geglu, relu2, got 'silu'"),
        ({"ff_width": 0}, "ff_width must be None or an integer from 1 to .*, got 0"),
        ({"norm": "batch"}, "norm must be one of layer, rms, got 'batch'"),
        ({"norm_placement": "both"}, "norm_placement must be one of pre, post, sandwich, got 'both'"),
        ({"norm_unit_offset": True}, "norm_unit_offset must be False unless norm is rms, got True"),
        ({"attention_scale": 0.0}, "attention_scale must be None or a number from .*, got 0.0"),
        ({"embedding_scale": -1.0}, "embedding_scale must be None or a number from .*, got -1.0"),
        ({"logit_softcap": 0.0}, "logit_softcap must be None or a number from .*, got 0.0"),
        (
            {"loss": LossSettings(exponent=0.5), "logit_softcap": 9.0},
            "logit_softcap must be None with exponent=0.5 below 1, got 9.0",
        ),
        ({"rope_scaling": {"kind": "linear", "factor": 2.0}}, "rope_scaling must be None unless positions are rotary"),
        ({"rope_scaling": 2.0}, "rope_scaling must be None or fields such as .*, got 2.0"),
        (
            {"rope_scaling": {"kind": "dynamic", "factor": 2.0}, "positions": "rotary"},
            "rope_scaling.kind must be one of linear, llama3, yarn, got 'dynamic'",
        ),
        ({"qk_norm": "rms"}, "qk_norm must be None or one of head, width, plain, got 'rms'"),
        ({"softcap": 0.0}, "softcap must be None or a number from 1e-30 to 1e.30, got 0.0"),
        ({"sigma_reparam": None}, "sigma_reparam must be True or False, got None"),
        ({"loss": 0.5}, "loss must be a LossSettings, got 0.5"),
        ({"z_loss": -1e-4}, "z_loss must be a number from 0 to 1e.30, got -0.0001"),
        (
            {"z_loss": 1e-4, "loss": LossSettings(z_loss=1e-3)},
            "z_loss=0.0001 and loss.z_loss=0.001 set the same thing; give loss.z_loss alone",
        ),
        ({"dropout": 1.0}, "dropout must be a number from 0 to 1, 1 excluded, got 1.0"),
        ({"bias": "no"}, "bias must be True or False, got 'no'"),
        ({"tie_embeddings": 0}, "tie_embeddings must be True or False, got 0"),
        ({"norm_eps": 0.0}, "norm_eps must be a number from 1e-30 to 1e.30, got 0.0"),
        ({"init_std": float("nan")}, "init_std must be a number from 1e-30 to 1e.30, got nan"),
        ({"loss_chunk": 0}, "chunk must be None or an integer from 1 to 2.63 - 1, got 0"),
        ({"backend": "cuda"}, "backend must be one of auto, reference, blocked, triton, sdpa, flex, got 'cuda'"),
    ],
)
def test_wrong_value_is_an_error_that_names_field_and_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPTConfig(**(SMALL | change))


def test_older_spellings_of_the_loss_are_taken_and_read() -> None:
    config = GPTConfig(**SMALL, z_loss=1e-4, loss_chunk=9)
    assert config.loss == LossSettings(z_loss=1e-4, chunk=9) and (config.z_loss, config.loss_chunk) == (1e-4, 9)
    assert GPTConfig.from_dict(SMALL | {"z_loss": 1e-4, "loss_chunk": 9}) == config
    assert GPTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert replace(config, width=64).loss == config.loss
    assert replace(config, loss=LossSettings(exponent=0.5)).loss == LossSettings(exponent=0.5)
    assert replace(GPTConfig(**SMALL, loss=LossSettings(exponent=0.5)), z_loss=1e-3).loss.z_loss == 1e-3


def test_activation_is_an_older_name_of_mlp() -> None:
    config = GPTConfig(**SMALL, activation="gelu_tanh")
    assert config == GPTConfig(**SMALL, mlp="gelu_tanh") and config.activation == config.mlp == "gelu_tanh"
    assert GPTConfig.from_dict(SMALL | {"activation": "gelu_tanh"}) == config
    assert replace(GPTConfig(**SMALL), activation="gelu_tanh") == config and replace(config, mlp="gelu").mlp == "gelu"
    assert GPTConfig.preset("gpt2-small", activation="gelu").mlp == "gelu"


def test_new_records_survive_json() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0)
    config = GPTConfig(**SMALL, positions="rotary", rope_scaling=scaling, logit_softcap=30.0)
    assert (config.logit_softcap, config.loss.logit_softcap) == (30.0, 30.0)
    loaded = GPTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert loaded == config and loaded.rope_scaling == scaling and hash(loaded) == hash(config)


def test_the_mlp_is_as_wide_as_ff_width_says() -> None:
    assert GPTConfig(**SMALL, ff_multiplier=3).mlp_width == 72
    assert GPTConfig(**SMALL, ff_multiplier=3, ff_width=50).mlp_width == 50


def test_unknown_key_is_an_error_that_names_the_nearest_field() -> None:
    with pytest.raises(ValueError, match="no field 'n_layer'; did you mean n_layers\\?"):
        GPTConfig.from_dict(SMALL | {"n_layer": 3})
    with pytest.raises(ValueError, match="no field 'windows'; did you mean window\\?"):
        GPTConfig.preset("tiny", windows=3)


def test_missing_field_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="needs a value for n_layers, width"):
        GPTConfig.from_dict({"vocab_size": 50, "context": 32, "n_heads": 4})


def test_unknown_preset_is_an_error_that_lists_them() -> None:
    with pytest.raises(ValueError, match=r"preset must be one of tiny, paper-6m, .* got 'gpt3'"):
        GPTConfig.preset("gpt3")
