"""transformers' generation with the per-head cache writes what it writes without one, and what our engine writes."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, TextIteratorStreamer

from longshort import GPT, HeadPlan, generate
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import LongShortCache, fast_tokenizer

from .small import VARIANTS, shell

ROWS = [list(range(5, 35)), [3], [200, 100, 50]]
POSITIONS = ["learned", "rotary", "sinusoidal", "alibi", "no positions"]
FIRST_KEYS_LATER = (HeadPlan.full(4), HeadPlan(windows=(8,) * 4, firsts=(2,) * 4))
COUNT = 20
"""Enough for the longest row to pass the 8 + 32 rows of a ring."""


def batch(rows=ROWS):
    """Padded on the left, as a tokenizer does it."""
    width = max(map(len, rows))
    tokens = torch.tensor([[256] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": tokens, "attention_mask": mask}


def text(model, rows=ROWS, **options):
    """New tokens of each row, without an end."""
    options = {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 256} | options
    inputs = batch(rows)
    return model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :].tolist()


def by_our_engine(model, rows):
    return torch.stack(list(generate(model.model, rows, max_new_tokens=COUNT, temperature=0.0))).T.tolist()


@pytest.mark.parametrize(
    "variant", [*POSITIONS, "all local", "one plan", "a plan a layer", "grouped queries", "las, smoothed before"]
)
@pytest.mark.every(3)
def test_greedy_text_of_a_ragged_batch_is_the_same_by_every_road(variant):
    model = shell(**VARIANTS[variant])
    cached = text(model)
    assert len({tuple(row) for row in cached}) > 1
    assert cached == text(model, use_cache=False)
    assert cached == by_our_engine(model, ROWS)
    assert cached[1] == text(model, [ROWS[1]])[0]


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}], ids=str)
def test_heads_not_rotated_write_the_same_far_past_the_context_from_a_saved_folder(options, tmp_path):
    """Eight times the context: rings of 8 + 32 slots wrap several times."""
    reach = {"pattern": "ladder", "largest": 8, "smallest": 2, "nope": True}
    model = shell(reach=reach, positions="rotary", n_kv_heads=2, context=16)
    model.save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    count = 16 * 8 - len(ROWS[0])
    cached = text(opened, max_new_tokens=count, **options)
    assert cached == text(opened, max_new_tokens=count, use_cache=False, **{**options, "cache_implementation": None})
    if not options:
        reference = GPT(replace(model.model.config, backend="reference")).eval()
        reference.load_state_dict(model.model.state_dict())
        for row, found in zip(ROWS, cached, strict=True):
            alone = generate(reference, [row], max_new_tokens=count, temperature=0.0, context=16 * 8, use_cache=False)
            assert torch.cat(list(alone)).tolist() == found


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5},
        {"num_beams": 2, "do_sample": True, "temperature": 0.7},
        {"do_sample": True, "top_k": 20},
        {"do_sample": True, "top_p": 0.8, "num_return_sequences": 2},
        {"repetition_penalty": 1.3},
        {"eos_token_id": [7, 29, 120], "num_beams": 2},
    ],
    ids=str,
)
def test_every_way_of_choosing_writes_the_same_with_and_without_a_cache(model, options):
    torch.manual_seed(3)
    cached = text(model, **options)
    torch.manual_seed(3)
    assert cached == text(model, use_cache=False, **options)


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup_num_tokens": 4},
        {"prompt_lookup_num_tokens": 60, "max_matching_ngram_size": 1, "max_new_tokens": 70},
        {"prefill_chunk_size": 3},
        {"cache_implementation": "static"},
        {"cache_implementation": "dynamic"},
    ],
    ids=str,
)
@pytest.mark.every(3)
def test_other_roads_to_greedy_text_write_the_same(positions, options):
    model, row = shell(positions=positions, context=256), [ROWS[0] + ROWS[0][:10]]
    count = options.pop("max_new_tokens", COUNT)
    assert text(model, row, max_new_tokens=count, **options) == text(model, row, max_new_tokens=count, use_cache=False)


@pytest.mark.parametrize(("helped_by", "drafts"), [("a worse model", 3), ("a worse model", 50), ("itself", 50)])
def test_assisted_text_is_the_text(model, assistant, helped_by, drafts, monkeypatch):
    """Fifty tokens are more than a ring's rollback of 32."""
    drafter = assistant if helped_by == "a worse model" else shell()
    monkeypatch.setattr(drafter.generation_config, "num_assistant_tokens", drafts)
    monkeypatch.setattr(drafter.generation_config, "num_assistant_tokens_schedule", "constant")
    monkeypatch.setattr(drafter.generation_config, "assistant_confidence_threshold", 0.0)
    longer = {"max_new_tokens": 40}
    assert text(model, [ROWS[0]], assistant_model=drafter, **longer) == text(
        model, [ROWS[0]], use_cache=False, **longer
    )


def test_the_cache_of_generate_is_ours_and_static_is_allocated_at_once(model):
    inputs = batch([ROWS[0]])
    options = {"max_new_tokens": COUNT, "pad_token_id": 256, "return_dict_in_generate": True, "do_sample": False}
    grown = model.generate(**inputs, **options).past_key_values
    static = model.generate(**inputs, **options, cache_implementation="static").past_key_values
    assert isinstance(grown, LongShortCache) and isinstance(static, LongShortCache)
    assert (grown.get_max_length(), static.get_max_length()) == (-1, 49)
    assert static.inner.layers[0].pools[0].k.shape[2] == 49


@pytest.mark.parametrize("kind", ["dynamic", pytest.param("static", marks=pytest.mark.slow)])
def test_a_compiled_forward_pass_writes_the_same_and_is_not_compiled_for_every_token(kind):
    model = shell()
    expected = text(model)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model.forward = torch.compile(model.forward, backend="eager")
    text(model, cache_implementation=kind, max_new_tokens=4)
    frames = torch._dynamo.utils.counters["frames"]["total"]
    assert text(model, cache_implementation=kind) == expected
    assert frames == torch._dynamo.utils.counters["frames"]["total"] > 0


@pytest.mark.parametrize("kind", ["offloaded", "quantized", "offloaded_static"])
def test_caches_that_know_no_heads_are_refused(model, kind):
    with pytest.raises(ValueError, match=f"cache_implementation must be None, dynamic or static .* got '{kind}'"):
        text(model, cache_implementation=kind)


def test_continuous_batching_is_refused_by_name(model):
    for write in (
        lambda: model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=2, cache_implementation="paged"),
        lambda: model.generate_batch([[1, 2, 3]], max_new_tokens=2),
    ):
        with pytest.raises(ValueError, match="does not run with continuous batching"):
            write()


def test_a_plain_cache_is_refused_before_anything_runs(model):
    with pytest.raises(ValueError, match="LongShortCache, got DynamicCache"):
        text(model, past_key_values=DynamicCache())


def test_a_later_call_goes_on_from_the_cache_of_an_earlier_one(model):
    inputs, options = batch(), {"do_sample": False, "pad_token_id": 256}
    cache = LongShortCache(model.config)
    first = model.generate(**inputs, max_new_tokens=12, past_key_values=cache, **options)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 12), value=1)
    second = model.generate(first, attention_mask=mask, max_new_tokens=COUNT - 12, past_key_values=cache, **options)
    assert second[:, 30:].tolist() == text(model)
    assert cache.get_seq_length() == 30 + COUNT - 1


def test_embeddings_may_be_the_prompt(model):
    tokens = torch.tensor([ROWS[0]])
    embeddings = model.get_input_embeddings()(tokens)
    for options in ({}, {"use_cache": False}):
        out = model.generate(
            inputs_embeds=embeddings, max_new_tokens=COUNT, do_sample=False, pad_token_id=256, **options
        )
        assert out[:, -COUNT:].tolist() == text(model, [ROWS[0]])


def test_hidden_states_come_step_by_step(model):
    options = {"max_new_tokens": 3, "pad_token_id": 256, "return_dict_in_generate": True, "output_hidden_states": True}
    states = model.generate(**batch(), **options).hidden_states
    assert [tuple(step[-1].shape) for step in states] == [(3, 30, 32), (3, 1, 32), (3, 1, 32)]
    with pytest.raises(ValueError, match="output_attentions must be False"):
        text(model, output_attentions=True, return_dict_in_generate=True)


@pytest.mark.parametrize("options", [{"max_new_tokens": 110}, {"max_length": 200, "max_new_tokens": None}], ids=str)
def test_text_ends_with_the_learned_positions(model, options):
    whole = text(model, **options)
    assert [len(row) for row in whole] == [128 + 1 - 30] * 3
    assert whole == text(model, max_new_tokens=99)
    embeddings = model.get_input_embeddings()(torch.tensor([ROWS[0]]))
    assert model.generate(inputs_embeds=embeddings, pad_token_id=256, **options).shape[1] == 99


@pytest.mark.parametrize("count", [40, 110])
def test_prompt_lookup_never_drafts_past_the_learned_positions(model, count):
    """A row that repeats itself is drafted from its beginning on, sixty tokens each time."""
    row, options = [list(range(1, 41)) * 2], {"max_new_tokens": count}
    assert text(model, row, prompt_lookup_num_tokens=60, max_matching_ngram_size=1, **options) == text(
        model, row, **options
    )


def test_an_assistant_of_fewer_positions_helps_as_far_as_they_go(model):
    assistant, options = shell(n_layers=1, init_std=0.21, context=40), {"max_new_tokens": 40}
    assert text(model, [ROWS[0]], assistant_model=assistant, **options) == text(model, [ROWS[0]], **options)


def test_drafts_of_the_first_layers_are_refused(model):
    with pytest.raises(ValueError, match="assistant_early_exit must be None for this model, got 1"):
        text(model, [ROWS[0]], assistant_early_exit=1)


@pytest.mark.parametrize(
    "options",
    [
        {"attention_chunk": 16},
        {"smoothing": 3, "smoothing_stage": "before", "smoothing_side": "leading", "backend": "reference"},
        {"positions": "alibi", "plans": FIRST_KEYS_LATER},
    ],
    ids=["chunks", "smoothing", "first keys with slopes in the second layer"],
)
def test_a_model_that_no_cache_serves_is_run_without_one(options):
    model = shell(**options)
    with torch.no_grad():
        assert model(torch.tensor([ROWS[0]])).past_key_values is None
    with pytest.raises(ValueError, match="use_cache must be False for this model"):
        text(model, [ROWS[0]])
    tokens = [
        int(token) for token in generate(model.model, [ROWS[0]], max_new_tokens=5, temperature=0, use_cache=False)
    ]
    assert text(model, [ROWS[0]], max_new_tokens=5, use_cache=False) == [tokens]


def test_text_without_learned_positions_goes_on():
    assert len(text(shell(positions="rotary"), max_new_tokens=110)[0]) == 110


def test_a_prompt_past_the_learned_positions_is_refused_by_their_name(model):
    with pytest.raises(ValueError, match="positions must be below max_position_embeddings=128"):
        text(model, [list(range(129))])


def test_text_can_be_streamed(model):
    tokenizer = fast_tokenizer(ByteTokenizer())
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    out = model.generate(**batch([ROWS[0]]), max_new_tokens=COUNT, do_sample=False, pad_token_id=256, streamer=streamer)
    assert "".join(streamer) == tokenizer.decode(out[0, 30:], skip_special_tokens=True)
