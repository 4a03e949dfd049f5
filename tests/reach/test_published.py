"""Patterns of published models, held against the configurations that transformers has of them."""

import pytest

from longshort import reach

CONFIGS = {
    "gemma-2": "Gemma2Config",
    "gemma-3": "Gemma3TextConfig",
    "gemma-4": "Gemma4TextConfig",
    "gpt-oss": "GptOssConfig",
    "command-a": "Cohere2Config",
    "llama-4": "Llama4TextConfig",
    "olmo-3": "Olmo3Config",
    "mimo-v2-flash": "MiMoV2FlashConfig",
    "modernbert": "ModernBertConfig",
    "granite-swa": "GraniteSWAConfig",
    "trinity": "AfmoeConfig",
    "exaone-4": "Exaone4Config",
    "muse-glimmer": "MuseGlimmerTextConfig",
}
BY_SIZE = ("gemma-3", "trinity")
"""Their windows differ between sizes, and from transformers' default."""


def config_of(name, layers):
    import transformers

    found = getattr(transformers, CONFIGS[name], None)
    if found is None:
        pytest.skip(f"this transformers has no {CONFIGS[name]}")
    return found(num_hidden_layers=layers)


def test_every_model_is_held_against_a_configuration():
    assert CONFIGS.keys() == reach.MODELS.keys()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("n_layers", [24, 27, 48])
def test_layers_are_global_where_the_published_model_says(name, n_layers):
    theirs = config_of(name, n_layers).layer_types
    if name == "exaone-4":
        theirs = [*theirs[:-1], "full_attention"]  # as its documentation says, and its code only for multiples of 4
    ours = reach.like(name, n_layers=n_layers, n_heads=8, n_kv_heads=2)
    assert [layer.plan.n_global == 8 for layer in ours] == [kind == "full_attention" for kind in theirs]
    assert {layer.plan.n_global for layer in ours} == {0, 8}


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in BY_SIZE])
def test_window_is_that_of_the_published_model(name):
    config = config_of(name, 24)
    theirs = config.attention_chunk_size if name == "llama-4" else config.sliding_window
    both_sides = {"modernbert": 1}  # a half-window without the current key
    local = next(layer for layer in reach.like(name, n_layers=24, n_heads=2) if layer.plan.n_global == 0)
    assert local.plan.windows == (theirs + both_sides.get(name, 0),) * 2


@pytest.mark.parametrize("name", ["gemma-3", "gemma-4", "mimo-v2-flash", "modernbert", "olmo-3"])
def test_rotary_bases_and_shares_are_those_of_the_published_model(name):
    theirs = config_of(name, 24).rope_parameters
    layer = reach.like(name, n_layers=24, n_heads=2)[0]
    for ours, kind in (("local", "sliding_attention"), ("global", "full_attention")):
        assert getattr(layer, f"{ours}_base") == theirs[kind]["rope_theta"]
        share = theirs[kind].get("partial_rotary_factor", 1.0)
        assert getattr(layer, f"{ours}_share") == pytest.approx(share, abs=1e-3)


def test_temperature_is_llama_4s():
    config = config_of("llama-4", 24)
    layer = reach.like("llama-4", n_layers=24, n_heads=2)[0]
    assert (layer.temperature.scale, layer.temperature.every) == (config.attn_scale, config.floor_scale)
    assert layer.global_share == 0


def test_sinks_stand_where_the_published_model_has_them_and_can_be_left_out():
    assert {layer.sink for layer in reach.like("gpt-oss", n_layers=4, n_heads=2)} == {"learned"}
    mimo = reach.like("mimo-v2-flash", n_layers=6, n_heads=2)
    assert [layer.sink for layer in mimo] == ["none", *["learned"] * 4, "none"]
    assert {layer.sink for layer in reach.like("gpt-oss", n_layers=4, n_heads=2, sinks=False)} == {"none"}


def test_each_model_names_its_source():
    assert all(published.source for published in reach.MODELS.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "gemma-9"}, "model must be one of gemma-2, .*, got 'gemma-9'"),
        ({"n_layers": 0}, "n_layers must be an integer >= 1, got 0"),
        ({"n_kv_heads": 3}, "n_kv_heads must be a divisor of n_heads=8, got 3"),
        ({"window": 0}, "window must be an integer from 1"),
        ({"context": 512}, "window must be at most context=512, got 1024"),
    ],
)
def test_bad_argument_gets_one_clear_error(arguments, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        reach.like(**{"model": "gemma-3", "n_layers": 12, "n_heads": 8, **arguments})
