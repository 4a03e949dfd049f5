"""Learned sinks in the layer, the model, both caches and generation."""

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, LSAttention, attention, generate
from longshort.model import SequenceClassifier
from longshort.reach import LayerReach

from ..small import small_config

PLAN = HeadPlan(windows=(None, 5, 2, 5))
SUNK = LayerReach(plan=PLAN, sink="learned")
REACH = {"pattern": "long_short", "n_global": 2, "window": 5, "sinks": True}


def drawn(module):
    """The module with sinks that differ."""
    for name, parameter in module.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return module


def layer(reach=SUNK, **options):
    torch.manual_seed(0)
    return drawn(LSAttention(32, reach, **options))


def model(**options):
    torch.manual_seed(0)
    return drawn(GPT(small_config(**{"reach": REACH, "n_kv_heads": 2, "init_std": 0.3} | options))).eval()


def tokens(rows=2, length=40):
    return torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(2))


def test_the_layer_gives_its_sinks_to_the_op_and_learns_them():
    own, x = layer(), torch.randn(2, 20, 32)
    expected = attention(*own.heads(x), PLAN, sinks=own.sinks, backend="reference").out
    found = own(x)
    torch.testing.assert_close(found, own.out(expected.transpose(1, 2).flatten(-2)))
    (grad,) = torch.autograd.grad(found.square().sum(), own.sinks)
    assert grad.all()


def test_sinks_far_below_leave_the_layer_without_them():
    own, plain, x = layer(), layer(PLAN), torch.randn(2, 20, 32)
    assert own.state_dict().keys() - plain.state_dict().keys() == {"sinks"}
    plain.load_state_dict({name: value for name, value in own.state_dict().items() if name != "sinks"})
    assert not torch.allclose(own(x), plain(x), atol=1e-3)
    torch.nn.init.constant_(own.sinks, -1e4)
    torch.testing.assert_close(own(x), plain(x))


def test_sinks_begin_at_0_and_change_no_other_weight_of_the_draw():
    models = []
    for sinks in (True, False):
        torch.manual_seed(0)
        models.append(GPT(small_config(reach=REACH | {"sinks": sinks})).state_dict())
    with_sinks, without = models
    sinks = [name for name in with_sinks if name.endswith("attention.sinks")]
    assert len(sinks) == 2 and not any(with_sinks.pop(name).any() for name in sinks)
    assert with_sinks.keys() == without.keys()
    assert all(torch.equal(value, without[name]) for name, value in with_sinks.items())


def test_weights_drawn_after_the_meta_device_include_sinks():
    with torch.device("meta"):
        own = GPT(small_config(reach=REACH))
    own = own.to_empty(device="cpu")
    for parameter in own.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    own.init_weights()
    assert not own.blocks[0].attention.sinks.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_op_takes_sinks_in_fp32_or_float64_whatever_the_dtype_of_the_layer(dtype):
    own, x = layer().to(dtype), torch.randn(2, 20, 32, dtype=dtype)
    sinks = own.sinks.to(torch.promote_types(dtype, torch.float32))
    expected = attention(*own.heads(x), PLAN, sinks=sinks).out
    assert torch.equal(own(x), own.out(expected.transpose(1, 2).flatten(-2)))


def test_under_autocast_sinks_stay_fp32():
    own, x = layer(), torch.randn(2, 20, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found = own(x)
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16 and own.sinks.grad.dtype == torch.float32
    torch.testing.assert_close(found.float(), own(x), atol=0.05, rtol=0.05)


def test_statistics_do_not_know_of_sinks():
    own, x = layer(), torch.randn(2, 20, 32)
    before = own(x, stats=True)
    torch.nn.init.constant_(own.sinks, 50.0)
    after = own(x, stats=True)
    assert not torch.allclose(before.out, after.out)
    assert torch.equal(before.stats.max, after.stats.max) and torch.equal(before.stats.min, after.stats.min)


def test_each_chunk_has_the_sinks():
    own, x = layer(chunk=8), torch.randn(2, 20, 32)
    whole = layer()
    parts = torch.cat([whole(part) for part in x.split(8, dim=1)], dim=1)
    torch.testing.assert_close(own(x), parts)


@torch.no_grad()
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"positions": "alibi"}, {"smoothing": 3}], ids=str)
def test_cached_decoding_equals_the_full_pass(options, stats, static):
    own, text = model(**options), tokens()
    cache = own.new_cache(2, static=static)
    steps = text.split((13, 1, 1, 9, 1, 1, 1, 1, 12), dim=1)
    found = [own(step, cache=cache, stats=stats).logits for step in steps]
    torch.testing.assert_close(torch.cat(found, dim=1), own(text).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("static", [False, True])
def test_a_cache_may_be_more_precise_than_the_model(static):
    own, text = model(), tokens()
    cache = own.new_cache(2, static=static, dtype=torch.float64)
    found = [own(step, cache=cache).logits for step in text.split((20, 1, 1, 18), dim=1)]
    torch.testing.assert_close(torch.cat(found, dim=1), own(text).logits, atol=1e-4, rtol=1e-4)


def test_a_cache_of_a_model_without_sinks_is_refused():
    cache = model(reach=REACH | {"sinks": False}).new_cache(2)
    with pytest.raises(ValueError, match="cache must have the plans"):
        model()(tokens(), cache=cache)


def test_generated_text_of_padded_rows_is_that_of_the_uncached_model():
    own, rows = model(), [[5, 6, 7, 8, 9, 10, 11], [3], [200, 100, 50]]
    options = {"max_new_tokens": 25, "temperature": 0.0}
    texts = [torch.stack(list(generate(own, rows, use_cache=cached, **options))) for cached in (True, False)]
    assert torch.equal(*texts)
    torch.nn.init.constant_(own.blocks[0].attention.sinks, 8.0)
    assert not torch.equal(texts[0], torch.stack(list(generate(own, rows, **options))))


def test_a_compiled_layer_learns_its_sinks():
    own, x = layer(), torch.randn(2, 20, 32)
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(form(x).square().sum(), own.sinks)[0] for form in (compiled, own))
    torch.testing.assert_close(found, expected)


def test_recomputed_blocks_give_sinks_the_same_gradient():
    own, text, found = model().train(), tokens(length=20), []
    for recomputed in (False, True):
        own.gradient_checkpointing = recomputed
        own.zero_grad()
        own(text[:, :-1], text[:, 1:]).loss.backward()
        found.append(own.blocks[1].attention.sinks.grad)
    assert torch.equal(*found)


def test_a_two_sided_classifier_learns_sinks():
    own = SequenceClassifier(small_config(reach=REACH), n_classes=3)
    own(tokens(), torch.tensor([0, 2])).loss.backward()
    assert all(block.attention.sinks.grad.all() for block in own.blocks)


def test_weights_of_another_attention_get_sinks():
    qkv, out = torch.nn.Linear(32, 96).bfloat16(), torch.nn.Linear(32, 32).bfloat16()
    own = LSAttention.from_projections(SUNK, qkv=qkv, out=out)
    assert own.sinks.dtype == torch.bfloat16 and not own.sinks.any()


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
def test_backends_without_sinks_are_refused_at_once(backend):
    words = f"^backend must be auto, reference, blocked or triton for learned sinks, got '{backend}'"
    with pytest.raises(ValueError, match=words):
        LSAttention(32, SUNK, backend=backend)
    with pytest.raises(ValueError, match=words):
        small_config(reach=REACH, backend=backend)
    LSAttention(32, PLAN, backend=backend)


def test_configuration_keeps_its_sinks():
    config = small_config(reach={"like": "mimo-v2-flash", "window": 8}, n_layers=7, positions="rotary")
    again = GPTConfig.from_dict(config.to_dict())
    assert again == config
    assert [layer.sink for layer in again.layer_reaches] == ["none", *["learned"] * 4, "none", "learned"]
