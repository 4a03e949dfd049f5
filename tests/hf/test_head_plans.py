"""Head plans in transformers' own models: equal to its eager attention under the same masks, cached and not."""

import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    CLIPVisionConfig,
    DynamicCache,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from longshort import HeadPlan
from longshort.hf import use_head_plan, watch_logits
from longshort.hf.head_plans import head_plan_attention

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"vocab_size": 61, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen3": Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "mistral": MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=7),
    "gemma2": Gemma2Config(
        **SIZES,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=6,
        query_pre_attn_scalar=2,
        attn_logit_softcapping=1.0,
    ),
    "phimoe": PhimoeConfig(**SIZES, num_key_value_heads=2, sliding_window=6, num_local_experts=2),
    "gpt-oss": GptOssConfig(
        **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=1
    ),
    "gpt2": GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None
    ),
}
PLAN = HeadPlan(windows=(None, 3, 5, 1))
LENGTH = 24


def eager(name):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[name]), attn_implementation="eager").eval()
    return model.apply(lambda m: m.weight.data.mul_(4) if isinstance(m, torch.nn.Linear) else None)


def with_plan(name, plan):
    model = eager(name)
    use_head_plan(model, plan)
    return model


def tokens(rows=2, length=LENGTH):
    return torch.randint(1, 61, (rows, length), generator=torch.Generator().manual_seed(1))


def windows_mask(plan, length=LENGTH):
    """(1, H, T, T), as eager attention adds it."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    seen = [(distance >= 0) & (distance < (window or length)) for window in plan.windows]
    return torch.where(torch.stack(seen), 0.0, -torch.inf)[None]


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_global_heads_are_the_models_own_attention(name):
    ids, mask = tokens(), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    packed = torch.cat([torch.arange(10), torch.arange(LENGTH - 10)])[None].expand(2, -1)
    cases = [{}, {"attention_mask": mask}, {"position_ids": packed, "use_cache": False}]
    old, new = eager(name), with_plan(name, HeadPlan.full(4))
    expected = [old(ids, **case).logits for case in cases]
    assert not torch.allclose(expected[0], expected[2], atol=1e-3)
    for case, logits in zip(cases, expected, strict=True):
        real = case.get("attention_mask", torch.ones_like(mask)).bool()
        torch.testing.assert_close(new(ids, **case).logits[real], logits[real], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_packed_sequences_are_apart_where_they_are_with_the_models_own_attention(name):
    ids, packed = tokens(), torch.cat([torch.arange(10), torch.arange(LENGTH - 10)])[None].expand(2, -1)
    apart = []
    for model in (eager(name), with_plan(name, HeadPlan.full(4))):
        second = model(ids, position_ids=packed, use_cache=False).logits[:, 10:]
        alone = model(ids[:, 10:], use_cache=False).logits
        apart.append(torch.allclose(second, alone, atol=2e-5, rtol=1e-4))
    assert apart[0] == apart[1]
    assert apart[0] or name == "gpt-oss"  # transformers gives its masks no position_ids


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_windows_are_those_of_a_mask_by_head_and_gradients_too(name):
    old, new, ids = eager(name), with_plan(name, PLAN), tokens()
    expected = old(ids, attention_mask=windows_mask(PLAN), labels=ids)
    found = new(ids, labels=ids)
    torch.testing.assert_close(found.logits, expected.logits, atol=2e-5, rtol=1e-4)
    expected.loss.backward()
    found.loss.backward()
    for a, b in zip(new.parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=2e-5, rtol=1e-3)


@torch.no_grad()
def test_plans_may_differ_from_layer_to_layer():
    ids, model = tokens(), with_plan("llama", [HeadPlan.full(4), PLAN])
    seen = {}
    for layer in model.model.layers:
        own = layer.self_attn
        own.register_forward_hook(lambda m, _, out: seen.__setitem__(m.layer_idx, out[0]))
    model(ids)
    both = dict(seen)
    use_head_plan(model, HeadPlan.full(4))
    model(ids)
    torch.testing.assert_close(seen[0], both[0])
    assert not torch.allclose(seen[1], both[1], atol=1e-3)


@pytest.mark.parametrize("name", CONFIGS)
def test_text_is_the_same_with_and_without_a_cache(name):
    model, ids = with_plan(name, PLAN), tokens(length=9)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


def test_a_plan_comes_back_with_a_saved_model_however_often_it_is_saved(tmp_path):
    model, ids = with_plan("llama", PLAN), tokens()
    again = model
    for folder in (tmp_path / "once", tmp_path / "twice"):
        again.save_pretrained(folder)
        again = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert again.config.head_plans[1]["windows"] == [None, 3, 5, 1]
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_a_plan_that_was_switched_off_stays_so_when_saved(tmp_path):
    model = with_plan("llama", PLAN)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation != "longshort"


def test_a_saved_plan_is_refused_where_longshort_is_not_imported(tmp_path):
    with_plan("llama", PLAN).save_pretrained(tmp_path)
    code = f"from transformers import AutoModelForCausalLM as auto; auto.from_pretrained({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and 'attn_implementation="longshort"` is not supported' in done.stderr


@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.no_grad()
@pytest.mark.every(2)
def test_a_compiled_model_is_one_graph_with_padding_and_without(name):
    model, ids = with_plan(name, PLAN), tokens()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits)
    torch.testing.assert_close(compiled(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.no_grad()
def test_a_mask_of_the_whole_row_serves_its_parts(name):
    model, ids = with_plan(name, PLAN), tokens()
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    whole = model(ids, attention_mask=mask).logits
    first = model(ids[:, :12], attention_mask=mask)
    rest = model(ids[:, 12:], attention_mask=mask, past_key_values=first.past_key_values).logits
    real = mask[..., None].bool()
    found = torch.cat([first.logits, rest], dim=1)
    torch.testing.assert_close(found * real, whole * real, atol=2e-5, rtol=1e-4)


def test_a_static_cache_that_slides_gives_the_same_text():
    model, ids = with_plan("mistral", HeadPlan.full(4)), tokens(length=8)
    mask = torch.ones_like(ids)
    mask[0, 0] = 0
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), model.generate(ids, **options))


@torch.no_grad()
def test_a_mask_of_the_new_tokens_alone_is_refused():
    model, ids = with_plan("llama", PLAN), tokens()
    cache = model(ids).past_key_values
    with pytest.raises(ValueError, match="must cover the 27 cached and new tokens"):
        model(ids[:, :3], attention_mask=torch.ones(2, 3), past_key_values=cache)


def test_keys_that_a_model_chose_are_refused():
    with pytest.raises(ValueError, match="does not support block_indices"):
        head_plan_attention(torch.nn.Identity(), *torch.zeros(3, 1, 4, 5, 8), None, block_indices=torch.zeros(1))


def test_the_tower_of_a_multimodal_model_keeps_its_own_attention_also_when_saved(tmp_path):
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = CLIPVisionConfig(**vision, image_size=8, patch_size=4)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=LlamaConfig(**SIZES)))
    use_head_plan(model, PLAN)
    model.save_pretrained(tmp_path)
    for config in (model.config, LlavaForConditionalGeneration.from_pretrained(tmp_path).config):
        assert config.text_config._attn_implementation == "longshort"
        assert config.vision_config._attn_implementation != "longshort"


def test_a_configuration_with_too_few_plans_is_refused():
    model = with_plan("llama", PLAN)
    model.config.head_plans = model.config.head_plans[:1]
    with pytest.raises(ValueError, match="a plan for every layer, got 1"):
        model(tokens())


@torch.no_grad()
def test_watching_gives_the_extremes_of_all_passes_within():
    model, ids = with_plan("llama", PLAN), tokens()
    alone = []
    for row in ids:
        with watch_logits() as seen:
            model(row[None])
        alone.append(seen[1])
    with watch_logits() as seen:
        model(ids[:1])
        model(ids[1:])
    assert sorted(seen) == [0, 1]
    torch.testing.assert_close(seen[1].max, torch.maximum(alone[0].max, alone[1].max))
    torch.testing.assert_close(seen[1].min, torch.minimum(alone[0].min, alone[1].min))
    assert (seen[0].abs_max > 0).all()


def test_nothing_is_watched_outside():
    model = with_plan("llama", PLAN)
    with watch_logits() as seen:
        pass
    model(tokens())
    assert seen == {}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (HeadPlan.full(3), "must have the model's 4 heads, got 3 in layer 0"),
        ([HeadPlan.full(4)], "each of the model's 2 layers, got 1"),
    ],
)
def test_a_plan_of_other_sizes_is_refused_and_changes_nothing(plan, words):
    model = eager("llama")
    with pytest.raises(ValueError, match=words):
        use_head_plan(model, plan)
    assert model.config._attn_implementation == "eager" and not hasattr(model.config, "head_plans")


def test_models_with_attention_of_their_own_are_refused(model):
    bloom = BloomForCausalLM(BloomConfig(vocab_size=61, hidden_size=32, n_layer=2, n_head=4))
    for other in (bloom, model):
        with pytest.raises(ValueError, match=f"got a {type(other).__name__}"):
            use_head_plan(other, HeadPlan.full(4))


def test_what_the_op_does_not_have_is_refused():
    encoder = BertModel(BertConfig(**SIZES))
    dropped = LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)).train()
    gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4)).train()
    refused = [
        (encoder, "no other masks"),
        (dropped, "attention_dropout must be 0.0"),
        (gpt2, "attn_pdrop must be 0.0"),
    ]
    for model, words in refused:
        use_head_plan(model, HeadPlan.full(4))
        with pytest.raises(ValueError, match=words):
            model(tokens())


@pytest.mark.parametrize(
    ("options", "words"),
    [({"cache_implementation": "static"}, "a cache that grows"), ({"attention_mask": "4-D"}, "(batch, length)")],
)
def test_caches_and_masks_that_do_not_fit_are_refused(options, words):
    model, ids = with_plan("llama", PLAN), tokens()
    with pytest.raises(ValueError) as caught:
        if "attention_mask" in options:
            model(ids, attention_mask=windows_mask(PLAN))
        else:
            model.generate(ids, max_new_tokens=2, pad_token_id=0, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float16])
def test_a_finished_mask_is_refused_whatever_numbers_it_holds(dtype):
    mask = torch.ones(LENGTH, LENGTH).tril().to(dtype).expand(2, 1, -1, -1)
    with pytest.raises(ValueError, match=r"attention_mask must be \(batch, length\)"):
        with_plan("llama", PLAN)(tokens(), attention_mask=mask)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_models_without_a_plan_are_as_they_were(name):
    config = CONFIGS[name]
    assert config.to_dict() == PreTrainedConfig.to_dict.__wrapped__(config)
    cache, before = DynamicCache(config=config), DynamicCache.__new__(DynamicCache)
    DynamicCache.__init__.__wrapped__(before, config=config)
    assert [type(layer) for layer in cache.layers] == [type(layer) for layer in before.layers]
