"""Patterns of reach in a whole model: configuration, decoding with both caches, and errors."""

import json

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, LSCache, reach

SIZES = {"vocab_size": 50, "context": 128, "n_layers": 4, "width": 32, "n_heads": 4}
REACHES = {
    "ladder": {"pattern": "ladder", "largest": 32, "smallest": 4},
    "ramp": {"pattern": "ramp", "first": 2, "last": 20},
    "dual rope by layer": {"pattern": "interleave", "layers": "LLG", "window": 8, "dual_rope": [100, 1e6]},
    "dual rope by head": {"pattern": "long_short", "n_global": 2, "window": 8, "dual_rope": True},
    "nope by head": {"pattern": "ladder", "largest": 32, "nope": True},
    "gemma-4": {"like": "gemma-4", "window": 8},
    "mimo-v2-flash": {"like": "mimo-v2-flash", "window": 8},
    "gpt-oss": {"like": "gpt-oss", "window": 8},
    "sinks by head": {"pattern": "ladder", "largest": 32, "smallest": 4, "sinks": True},
    "warm": {"pattern": "long_short", "n_global": 2, "window": 8, "temperature": {"scale": 0.3, "every": 5}},
}


def build(name, **options):
    torch.manual_seed(0)
    settings = {"positions": "rotary", "init_std": 0.3, "reach": REACHES[name]} | SIZES | options
    model = GPT(GPTConfig(**settings)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_cached_decoding_equals_the_full_pass(name, static, n_kv_heads):
    model = build(name, n_kv_heads=n_kv_heads)
    tokens = torch.randint(50, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens).logits
        cache = model.new_cache(2, static=static)
        steps = [tokens[:, :25], tokens[:, 25:33], *tokens[:, 33:].split(1, dim=1)]
        found = torch.cat([model(step, cache=cache).logits for step in steps], dim=1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
def test_heads_not_rotated_decode_far_past_the_context_as_in_the_full_pass(static, sinks):
    """Rings of 4 to 16 + 32 slots wrap several times, and the angles of local heads are twelve times the context's."""
    reach = {"pattern": "ladder", "largest": 16, "smallest": 4, "nope": True, "sinks": sinks}
    model, expected = (build("ladder", reach=reach, context=16, n_kv_heads=2, backend=b) for b in ("auto", "reference"))
    tokens = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(1))
    cache = model.new_cache(2, static=static, max_length=200)
    with torch.no_grad():
        steps = [tokens[:, :50], tokens[:, 50:57], *tokens[:, 57:].split(1, dim=1)]
        found = torch.cat([model(step, cache=cache).logits for step in steps], dim=1)
        torch.testing.assert_close(found, expected(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["dual rope by head", "nope by head", "warm"])
def test_positions_of_heads_change_the_result(name):
    model = build(name)
    plain = GPT(GPTConfig(**SIZES, positions="rotary", plans=[layer.plan for layer in model.config.reach])).eval()
    plain.load_state_dict(model.state_dict())
    tokens = torch.randint(50, (1, 60), generator=torch.Generator().manual_seed(1))
    assert not torch.allclose(model(tokens).logits, plain(tokens).logits, atol=1e-3)


@pytest.mark.parametrize("name", REACHES)
def test_pattern_trains(name):
    model = build(name).train()
    tokens = torch.randint(50, (2, 40))
    model(tokens[:, :-1], tokens[:, 1:]).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", REACHES)
def test_reach_survives_json(name):
    config = build(name).config
    assert GPTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.reach == reach.resolve(REACHES[name], n_layers=4, n_heads=4)
    hash(config.reach)


def test_pattern_of_plans_alone_is_those_plans():
    by_name = GPTConfig(**SIZES, reach={"pattern": "long_short", "n_global": 1, "window": 8})
    by_fields = GPTConfig(**SIZES, n_global=1, window=8)
    assert by_name.layer_reaches == by_fields.layer_reaches
    torch.manual_seed(0)
    one = GPT(by_name).eval()
    torch.manual_seed(0)
    other = GPT(by_fields).eval()
    tokens = torch.randint(50, (1, 60))
    assert torch.equal(one(tokens).logits, other(tokens).logits)


def test_layers_can_be_given_in_python():
    layers = reach.interleave("LG", 8, n_layers=4, n_heads=4)
    assert GPTConfig(**SIZES, reach=layers).reach == layers
    assert GPTConfig(**SIZES, reach=list(layers)).reach == layers
    assert GPTConfig.preset("tiny", reach="full").layer_plans == (HeadPlan.full(4),) * 2


def test_alibi_adds_its_slopes():
    config = GPTConfig(**SIZES, positions="alibi", reach="full")
    assert config.layer_reaches[0].plan == HeadPlan.full(4).with_alibi()
    assert GPT(config).new_cache().layers[0].plan == HeadPlan.full(4).with_alibi()


def test_cache_of_other_bases_is_refused():
    model = build("dual rope by head")
    tokens = torch.zeros(1, 3, dtype=torch.long)
    plans = [layer.plan for layer in model.config.reach]
    with pytest.raises(ValueError, match="cache must have the plans"):
        model(tokens, cache=LSCache(plans, head_dim=8))
    model(tokens, cache=LSCache(model.config.layer_reaches, head_dim=8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reach": "ladder", "n_global": 1, "window": 8}, "heads must have their reach by .*, got n_global and reach"),
        ({"reach": "full", "plan": HeadPlan.full(4)}, "heads must have their reach by .*, got plan and reach"),
        ({"reach": "ladder"}, "reach ladder: largest must be at most context=128, got 512"),
        (
            {"reach": {"pattern": "interleave", "layers": "LLXG", "window": 8}},
            "reach interleave: layers must be letters",
        ),
        ({"reach": "command-a"}, "reach command-a: window must be at most context=128, got 4096"),
        (
            {"reach": {"pattern": "full", "nope": True}, "positions": "learned"},
            "positions must be rotary for nope, dual_rope and partly rotated heads in reach, got 'learned'",
        ),
        (
            {
                "reach": {"pattern": "long_short", "n_global": 1, "window": 8, "nope": True},
                "rope_scaling": {"kind": "yarn", "factor": 4.0, "heads": "global"},
            },
            "rope_scaling.heads must be all where no global head is rotated, got 'global'",
        ),
        ({"reach": "full", "n_kv_heads": 3}, "reach full: n_kv_heads must be a divisor of n_heads=4, got 3"),
        (
            {"reach": [reach.LayerReach(plan=HeadPlan(windows=(None, 8, 8, 8)))] * 4, "n_kv_heads": 2},
            r"reach\[0\] must be all global or all local in each 2 query heads",
        ),
    ],
)
def test_wrong_reach_is_one_clear_error(options, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        GPTConfig(**{**SIZES, "positions": "rotary", **options})
