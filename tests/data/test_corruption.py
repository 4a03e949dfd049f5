"""Random tokens in training text: how many, which, and the same ones for everybody."""

import numpy as np
import pytest
import torch

from longshort.data.corruption import Corruption
from longshort.data.stream import TokenStream
from longshort.data.tokenizer import ByteTokenizer
from longshort.data.tokens import write_token_file


def corruption(share, **changes):
    return Corruption(share, **{"vocab_size": 50, "kept": 20, "seed": 1} | changes)


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_the_share_of_tokens_is_replaced_by_uniform_ones(share):
    row = corruption(share)(np.full(200_000, 7), start=0)
    counts = np.bincount(row, minlength=50)
    assert (row != 7).mean() == pytest.approx(share * 48 / 49, abs=0.005)
    assert len(counts) == 50
    others = np.delete(counts, [7, 20])
    assert others.min() > 0.8 * others.mean() and others.max() < 1.2 * others.mean()


def test_ends_of_documents_are_neither_replaced_nor_drawn():
    row = corruption(1.0)(np.array([20, 3, 20, 20, 5] * 1000), start=0)
    assert (row.reshape(-1, 5)[:, [0, 2, 3]] == 20).all()
    assert not (row.reshape(-1, 5)[:, [1, 4]] == 20).any()


def test_a_token_is_replaced_by_the_same_one_in_whatever_window_it_lies():
    text = np.arange(1000) % 20
    noisy = corruption(0.3)
    whole = noisy(text, start=0)
    assert (noisy(text[333:500], start=333) == whole[333:500]).all()


def test_seeds_corrupt_different_tokens():
    text = np.zeros(10_000, dtype=np.int64)
    one, other = (corruption(0.3, seed=seed)(text, start=0) != 0 for seed in (0, 1))
    assert (one & other).mean() == pytest.approx(0.09, abs=0.015)


def test_no_share_leaves_the_tokens_as_they_are():
    text = np.arange(10)
    assert corruption(0.0)(text, start=0) is text


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_is_none_is_an_error(share):
    with pytest.raises(ValueError, match=f"share must be from 0 to 1, got {share}"):
        corruption(share)


def test_a_vocabulary_of_nothing_else_is_an_error():
    with pytest.raises(ValueError, match="vocab_size must be at least 2 where tokens are replaced, got 1"):
        corruption(0.5, vocab_size=1)


def test_a_stream_gives_every_epoch_and_world_size_the_same_wrong_tokens(tmp_path):
    text = np.random.default_rng(0).integers(97, 123, 401).astype(np.uint16)
    file = write_token_file(tmp_path / "train.tokens", [text], ByteTokenizer())
    noisy, clean = (
        TokenStream(file, batch_size=4, length=20, seed=3, segments=True, corruption=share) for share in (0.3, 0.0)
    )
    wrong = {}
    for step in range(12):  # more than two epochs
        batch, same = noisy.batch(step), clean.batch(step)
        assert batch.indices == same.indices and torch.equal(batch.segments, same.segments)
        assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
        halves = [noisy.batch(step, rank=rank, world_size=2).tokens for rank in (0, 1)]
        assert torch.equal(torch.cat(halves), batch.tokens)
        for row, original in zip(batch.tokens, same.tokens, strict=True):
            place = next(i for i in range(len(text)) if (text[i : i + 20] == original.numpy()).all())
            for offset, token in enumerate(row.tolist()):
                assert wrong.setdefault(place + offset, token) == token
    changed = [token != text[place] for place, token in wrong.items()]
    assert 0.2 < sum(changed) / len(changed) < 0.4


def test_streams_of_other_seeds_have_other_wrong_tokens(tmp_path):
    file = write_token_file(tmp_path / "train.tokens", [np.full(41, 97, dtype=np.uint16)], ByteTokenizer())
    one, other = (TokenStream(file, batch_size=1, length=40, seed=seed, corruption=0.5).batch(0) for seed in (0, 1))
    assert not torch.equal(one.tokens == 97, other.tokens == 97)
