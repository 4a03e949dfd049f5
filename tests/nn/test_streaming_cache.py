"""Both caches with streaming heads: the first keys stay, the recent ones follow in a ring."""

import pytest
import torch

from longshort import LSCache, reach

from .decoding import TIGHT, build, draw, full

SHAPES = {"n_layers": 2, "n_heads": 4}
MODELS = {
    "streaming": {"reach": reach.streaming(5, 7, **SHAPES)},
    "with a global head": {"reach": reach.streaming(5, 7, n_global=1, **SHAPES)},
    "grouped": {"reach": reach.streaming(5, 3, n_global=2, n_kv_heads=2, **SHAPES), "n_kv_heads": 2},
    "smoothed": {"reach": reach.streaming(5, 7, n_global=1, **SHAPES), "smoothing": 3},
}
SPLITS = {"one by one": (1,) * 60, "chunks": (20, 25, 15), "prefill": (30, *(1,) * 30), "short steps": (2, 3) * 12}
SEGMENTS = {
    "none": None,
    "left padding": torch.where(torch.arange(60) < torch.tensor([[0], [13]]), -1, 0),
    "documents": torch.arange(60) // torch.tensor([[30], [23]]),
}
CACHES = {"growing": {}, "static": {"static": True, "max_length": 60}}


def decoded(model, tokens, split, segments, **options):
    cache = model.new_cache(batch_size=2, rollback=4, **options)
    parts, start = [], 0
    for size in split:
        ids = None if segments is None else segments[:, start : start + size]
        with torch.no_grad():
            parts.append(model(tokens[:, start : start + size], segments=ids, cache=cache).logits)
        start += size
    return torch.cat(parts, dim=1), cache


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("text", SEGMENTS)
@pytest.mark.parametrize("split", ["chunks", "prefill"])
@pytest.mark.parametrize("name", MODELS)
def test_decoding_agrees_with_the_whole_sequence(name, split, text, kind):
    model, tokens, segments = build(positions="rotary", **MODELS[name]), draw(2, 60), SEGMENTS[text]
    wanted = full(model, tokens, segments=segments)
    found, _ = decoded(model, tokens, SPLITS[split], segments, **CACHES[kind])
    seen = torch.ones(2, 60, dtype=torch.bool) if segments is None else segments >= 0
    torch.testing.assert_close(found[seen], wanted[seen], **TIGHT)


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("split", ["one by one", "short steps"])
def test_steps_from_the_first_token_on_agree_with_the_whole_sequence(split, kind):
    model, tokens = build(positions="rotary", **MODELS["with a global head"]), draw(2, 60)
    found, _ = decoded(model, tokens, SPLITS[split], None, **CACHES[kind])
    torch.testing.assert_close(found, full(model, tokens), **TIGHT)


@pytest.mark.parametrize("kind", CACHES)
def test_tokens_can_be_taken_back_and_sequences_reordered(kind):
    model, tokens = build(positions="rotary", **MODELS["streaming"]), draw(2, 60)
    wanted = full(model, tokens)
    with torch.no_grad():
        cache = model.new_cache(batch_size=2, rollback=4, **CACHES[kind])
        model(tokens[:, :30], cache=cache)
        model(draw(2, 3, seed=5), cache=cache)
        cache.crop(3)
        cache.reorder(torch.tensor([1, 0]))
        found = model(tokens.flip(0)[:, 30:], cache=cache).logits
    torch.testing.assert_close(found, wanted.flip(0)[:, 30:], **TIGHT)


@pytest.mark.parametrize("kind", CACHES)
def test_the_beginning_of_a_document_is_not_taken_back(kind):
    model, tokens = build(positions="rotary", **MODELS["streaming"]), draw(2, 30)
    segments = torch.arange(30).expand(2, -1) // 28
    cache = model.new_cache(batch_size=2, rollback=4, **CACHES[kind])
    with torch.no_grad():
        model(tokens, segments=segments, cache=cache)
    cache.crop(1)
    with pytest.raises(ValueError, match="n must not take back the beginning of a document"):
        cache.crop(2)


@pytest.mark.parametrize("kind", CACHES)
def test_the_beginning_of_a_document_is_not_taken_back_to_the_padding_before_it(kind):
    model, tokens = build(positions="rotary", **MODELS["streaming"]), draw(2, 12)
    segments = torch.tensor([0] * 8 + [-1, -1, 1, 1]).expand(2, -1)
    cache = model.new_cache(batch_size=2, rollback=4, **CACHES[kind])
    with torch.no_grad():
        model(tokens, segments=segments, cache=cache)
    with pytest.raises(ValueError, match="n must not take back the beginning of a document"):
        cache.crop(3)


@pytest.mark.parametrize("kind", CACHES)
def test_padding_and_what_follows_left_padding_can_be_taken_back(kind):
    model, tokens = build(positions="rotary", **MODELS["streaming"]), draw(2, 30)
    segments = SEGMENTS["left padding"][:, :30]
    cache = model.new_cache(batch_size=2, rollback=4, **CACHES[kind])
    with torch.no_grad():
        model(tokens[:, :13], segments=segments[:, :13], cache=cache)
        model(draw(2, 3, seed=5), segments=torch.tensor([[0, 0, -1], [0, 0, 0]]), cache=cache)
        cache.crop(3)
        found = model(tokens[:, 13:], segments=segments[:, 13:], cache=cache).logits
    torch.testing.assert_close(found, full(model, tokens, segments=segments)[:, 13:], **TIGHT)


def test_a_cache_holds_the_first_keys_and_the_ring_and_no_more():
    model = build(positions="rotary", **MODELS["streaming"])
    _, cache = decoded(model, draw(2, 60), SPLITS["prefill"], None)
    slots = 5 + 7 + 4
    assert cache.nbytes == 2 * 2 * 2 * 4 * slots * 8 * 4  # k and v, layers, sequences, heads, slots, head dim, fp32


def test_slopes_beside_first_keys_are_refused_with_the_reason():
    plan = reach.streaming(5, 7, **SHAPES)[0].plan.with_alibi()
    with pytest.raises(ValueError, match="a cache serves first keys without decays and slopes"):
        LSCache([plan], head_dim=8)
