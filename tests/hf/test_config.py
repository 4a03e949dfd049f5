"""Every GPTConfig goes to Hugging Face's terms, through JSON, and back."""

import dataclasses
import subprocess
import sys

import pytest
from transformers import AutoConfig

from longshort import GPTConfig, HeadPlan
from longshort.hf import LongShortConfig
from longshort.losses import LossSettings
from longshort.model import PRESETS
from longshort.nn import RopeScaling

from ..small import small_config
from .small import VARIANTS

STREAMING = HeadPlan(windows=(None, 3, 8, 8), firsts=(0, 2, 0, 1))
ALL = VARIANTS | {"streaming heads": {"plans": (HeadPlan.full(4), STREAMING)}}


def same_model(one, other):
    """Equal but for the way in which the reach of the heads was written."""
    reach = {"n_global": None, "window": None, "plan": None, "plans": None, "reach": None}
    assert one.layer_reaches == other.layer_reaches
    assert dataclasses.replace(one, **reach) == dataclasses.replace(other, **reach)


@pytest.mark.parametrize(
    "config",
    [GPTConfig.preset(name) for name in PRESETS] + [small_config(**options) for options in ALL.values()],
    ids=[*PRESETS, *ALL],
)
def test_every_configuration_comes_back_from_json(config, tmp_path):
    LongShortConfig.from_gpt(config).save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, LongShortConfig)
    same_model(loaded.to_gpt(), config)


def test_the_number_of_key_value_heads_is_a_number_and_plain_attention_stays_so():
    config = LongShortConfig.from_gpt(small_config())
    assert config.num_key_value_heads == config.num_attention_heads == 4
    assert config.to_gpt() == small_config()


def test_no_field_of_the_model_is_forgotten():
    changed = {
        "vocab_size": 300,
        "context": 99,
        "n_layers": 3,
        "width": 48,
        "n_heads": 6,
        "n_kv_heads": 3,
        "head_dim": 10,
        "ff_multiplier": 4,
        "ff_width": 50,
        "n_global": 2,
        "window": 7,
        "positions": "rotary",
        "restart_positions": True,
        "rope_theta": 77.0,
        "rope_scaling": RopeScaling(kind="yarn", factor=3.0, original_context=50, heads="global"),
        "mlp": "swiglu",
        "norm": "rms",
        "norm_unit_offset": True,
        "norm_placement": "sandwich",
        "qk_norm": "width",
        "qk_norm_eps": 0.2,
        "attention_scale": 0.3,
        "softcap": 9.0,
        "sigma_reparam": True,
        "loss": LossSettings(exponent=0.5, linear_below=0.02, z_loss=0.5, chunk=11),
        "dropout": 0.25,
        "bias": True,
        "tie_embeddings": True,
        "embedding_scale": 7.0,
        "norm_eps": 0.1,
        "init_std": 0.5,
        "backend": "reference",
        "smoothing": 3,
        "smoothing_side": "centred",
        "smoothing_stage": "before",
        "attention_chunk": 12,
    }
    assert changed.keys() | {"plan", "plans", "reach"} == {field.name for field in dataclasses.fields(GPTConfig)}
    config = GPTConfig(**changed)
    assert LongShortConfig.from_gpt(config).to_gpt() == config
    others = {"ff_multiplier": 3, "ff_width": None, "loss": LossSettings(logit_softcap=5.0)}
    assert LongShortConfig.from_gpt(GPTConfig(**changed | others)).to_gpt() == GPTConfig(**changed | others)


def test_reach_is_a_mapping_per_layer():
    config = small_config(
        reach={"pattern": "interleave", "layers": "LG", "window": 8, "nope": True}, positions="rotary"
    )
    theirs = LongShortConfig.from_gpt(config)
    assert theirs.layer_reach == [layer.to_dict() for layer in config.reach]
    assert theirs.to_gpt() == config


def test_decays_and_slopes_go_with_the_short_way_of_giving_windows():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LongShortConfig(
        **sizes, num_global_heads=1, local_window=4, head_decays=[[0.0, 0.5]], head_slopes=[(1, 2)]
    )
    (plan,) = config.to_gpt().layer_plans
    assert (plan.windows, plan.decays, plan.slopes) == ((None, 4), (0.0, 0.5), (1.0, 2.0))


def test_transformers_sees_no_sliding_layers():
    config = LongShortConfig.from_gpt(small_config())
    assert not hasattr(config, "sliding_window")
    assert getattr(config, "layer_types", None) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 30}, "hidden_size must be a multiple of num_attention_heads=4"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must be a divisor of num_attention_heads=4"),
        ({"local_window": 4}, "local_window must be None unless num_global_heads is set"),
        ({"num_global_heads": 1}, "local_window must be an integer >= 1"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type must be one of learned"),
        ({"hidden_act": "silu"}, "hidden_act must be one of gelu, .*got 'silu'"),
        ({"intermediate_size": 0}, "intermediate_size must be None or an integer from 1 to .*, got 0"),
        ({"norm_type": "group"}, "norm_type must be one of layer, rms, got 'group'"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping must be None or a number from .*, got 0.0"),
        (
            {"rotary_scaling": {"kind": "dynamic", "factor": 2.0}, "position_embedding_type": "rotary"},
            "rotary_scaling.kind must be one of linear, llama3, yarn, got 'dynamic'",
        ),
        ({"head_windows": [[4] * 4]}, r"head_windows must have num_hidden_layers=2 rows .* got rows of \[4\]"),
        ({"attention_smoothing": 0}, "attention_smoothing must be None or an integer from 1 to .*, got 0"),
        ({"head_decays": [[0.1] * 3] * 2}, r"head_decays must have .* got rows of \[3, 3\]"),
        ({"head_windows": [[4] * 4] * 2, "num_global_heads": 4}, "num_global_heads and local_window, or head_windows"),
        ({"head_windows": [[0] * 4] * 2}, r"windows\[0\] must be None"),
        (
            {"layer_reach": [{"plan": {"windows": [4] * 4}}]},
            "layer_reach must have one entry for each of num_hidden_la",
        ),
        ({"score_exponent": 2.0}, "score_exponent must be a number from 0 to 1, got 2.0"),
        ({"loss_chunk": 0}, r"loss_chunk must be None or an integer from 1 to 2\^63 - 1, got 0"),
        ({"attention_backend": "fast"}, "attention_backend must be one of auto"),
        ({"n_global": 1, "window": 4}, "n_global must be left out, got 1: LongShortConfig calls it num_global_heads"),
        ({"sliding_window": 4}, "sliding_window must be left out, got 4: LongShortConfig calls it local_window"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling must be .*: LongShortConfig calls it rotary_scaling"),
        ({"plans": [HeadPlan.full(4)] * 2}, "plans must be .*: LongShortConfig calls it head_windows"),
    ],
)
def test_a_bad_field_is_named_as_it_is_called_here(fields, message):
    with pytest.raises(ValueError, match=message):
        LongShortConfig(hidden_size=fields.pop("hidden_size", 32), num_hidden_layers=2, num_attention_heads=4, **fields)


def test_a_name_that_had_no_effect_does_not_close_a_folder_that_was_saved_with_it(tmp_path):
    config = LongShortConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    config.n_global, config.dropout = 1, 0.0
    config.save_pretrained(tmp_path)
    assert LongShortConfig.from_pretrained(tmp_path).num_global_heads is None


def test_without_transformers_the_import_says_what_to_install():
    code = "import sys; sys.modules['transformers'] = None\nfrom longshort.hf import LongShortForCausalLM"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: longshort.hf needs transformers >= 5.17: pip install 'longshort[hf]'"
    )
