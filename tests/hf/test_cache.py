"""The cache as transformers handles it: lengths, rows and tokens taken back."""

import copy

import pytest
import torch
from transformers import DynamicCache

from longshort.hf import LongShortCache

TOKENS = torch.randint(257, (2, 60), generator=torch.Generator().manual_seed(1))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def filled(model, length=40, **options):
    cache = LongShortCache(model.config, **options)
    model(TOKENS[:, :length], past_key_values=cache)
    return cache


@torch.no_grad()
def following(model, cache, tokens):
    return model(tokens, past_key_values=cache).logits


def test_it_tells_its_length_as_any_cache_does(model):
    cache = LongShortCache(model.config)
    assert (len(cache), cache.get_seq_length(), cache.get_max_length(), cache.batch_size) == (2, 0, -1, -1)
    assert not cache.is_initialized and cache.nbytes == 0
    cache = filled(model, max_length=50)
    assert (cache.get_seq_length(), cache.get_seq_length(1), cache.get_max_length(), cache.batch_size) == (
        40,
        40,
        50,
        2,
    )
    assert cache.get_mask_sizes(3, 0) == (43, 0)
    assert cache.is_initialized and not cache.is_compileable and cache.is_croppable
    assert cache.nbytes == cache.inner.nbytes


def test_local_heads_keep_a_ring(model):
    pools = filled(model, rollback=4).inner.layers[0].pools
    assert [(pool.window, pool.k.shape[2]) for pool in pools] == [(None, 64), (8, 12)]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_crop_takes_tokens_back_given_a_negative_number_or_tensor(model, count):
    cache = filled(model, 40 + count, rollback=4)
    cache.crop(torch.tensor(-count) if count == 4 else -count)
    assert cache.get_seq_length() == 40
    close(following(model, cache, TOKENS[:, 40:]), model(TOKENS).logits[:, 40:])


def test_crop_beyond_the_rollback_is_refused_and_changes_nothing(model):
    cache = filled(model, rollback=4)
    for wrong, message in (
        (-5, "n must be from 0 to 4 .* got 5"),
        (3, "0 or a negative integer, got 3"),
        (-1.5, "tokens_to_remove must be 0 or a negative integer, got -1.5"),
        (torch.tensor([-1, -1]), "tokens_to_remove must be 0 or a negative integer"),
    ):
        with pytest.raises(ValueError, match=message):
            cache.crop(wrong)
    with pytest.raises(ValueError, match="must be 0 for an empty cache, got -1"):
        LongShortCache(model.config).crop(-1)
    close(following(model, cache, TOKENS[:, 40:]), model(TOKENS).logits[:, 40:])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_recorded_past_can_be_taken_back_whole(model, when):
    cache = LongShortCache(model.config, rollback=2)
    if when == "before":
        cache.activate_past_recording()
    following(model, cache, TOKENS[:, :20])
    cache.crop(0)
    cache.activate_past_recording()
    assert cache.layers[0].record_past
    following(model, cache, TOKENS.flip(1)[:, :30])
    cache.crop(-30)
    close(following(model, cache, TOKENS[:, 20:]), model(TOKENS).logits[:, 20:])
    cache.layers[1].record_past = False
    cache.crop(0)
    with pytest.raises(ValueError, match="n must be from 0 to 2 "):
        cache.crop(-3)


def test_what_comes_after_recording_was_ended_is_not_recorded(model):
    cache = LongShortCache(model.config, rollback=2)
    cache.activate_past_recording()
    following(model, cache, TOKENS[:, :20])
    cache.layers[1].record_past = False
    cache.crop(0)
    following(model, cache, TOKENS[:, 20:40])
    with pytest.raises(ValueError, match="n must be from 0 to 2 "):
        cache.crop(-3)


def test_rows_are_reordered_repeated_and_chosen(model):
    cache = filled(model)
    cache.reorder_cache(torch.tensor([1, 0], dtype=torch.int32))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([False, True, True, True]))
    cache.batch_select_indices(torch.tensor([0, 1]))
    assert cache.batch_size == 2
    close(following(model, cache, TOKENS[[1, 0], 40:]), model(TOKENS[[1, 0]]).logits[:, 40:])


def test_a_copy_goes_its_own_way(model):
    cache = filled(model)
    other = copy.deepcopy(cache)
    following(model, other, TOKENS[:, :10])
    assert (cache.get_seq_length(), other.get_seq_length()) == (40, 50)
    close(following(model, cache, TOKENS[:, 40:]), model(TOKENS).logits[:, 40:])


def test_after_a_reset_it_is_as_new(model):
    cache = filled(model)
    cache.reset()
    assert cache.get_seq_length() == 0
    close(following(model, cache, TOKENS), model(TOKENS).logits)


def test_an_empty_cache_takes_any_batch(model):
    cache = LongShortCache(model.config)
    with pytest.raises(ValueError, match="tokens must be from 0"):
        following(model, cache, torch.full((3, 5), 999))
    close(following(model, cache, TOKENS), model(TOKENS).logits)
    cache.reset()
    close(following(model, cache, TOKENS[:1]), model(TOKENS[:1]).logits)


def test_a_layer_cannot_be_changed_alone(model):
    cache = filled(model)
    for call in (
        lambda: cache.update(torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8), 0),
        lambda: cache.layers[0].crop(-1),
        lambda: cache.layers[0].reset(),
        lambda: cache.layers[0].reorder_cache(torch.tensor([0, 1])),
    ):
        with pytest.raises(NotImplementedError, match="only be changed through its cache"):
            call()


def test_another_cache_or_batch_is_refused(model):
    with pytest.raises(ValueError, match=r"past_key_values must be a longshort.hf.LongShortCache, got DynamicCache"):
        model(TOKENS, past_key_values=DynamicCache())
    cache = filled(model)
    with pytest.raises(ValueError, match="cache must have the batch size of the input, 1, got 2"):
        following(model, cache, TOKENS[:1])
    assert cache.get_seq_length() == 40
