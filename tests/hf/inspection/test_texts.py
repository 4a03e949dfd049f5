"""Sequences that are made: what is asked for is where the places say."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from longshort.data import ByteTokenizer
from longshort.hf import fast_tokenizer
from longshort.hf.inspection.texts import needles, opening, repeated, text_sequences


def byte_tokenizer(*, opens=False):
    tokenizer = fast_tokenizer(ByteTokenizer())
    if opens:
        start = tokenizer.bos_token
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, tokenizer.bos_token_id)]
        )
    return tokenizer


@pytest.mark.parametrize("opens", [False, True])
def test_every_sequence_begins_as_the_tokenizer_begins_a_text(opens, text):
    tokenizer = byte_tokenizer(opens=opens)
    assert opening(tokenizer) == [256] * opens
    tokens, name = text_sequences(tokenizer, text, rows=3, length=50)
    assert tokens.shape == (3, 50) and name == str(text)
    assert (tokens[:, 0] == 256).all() == opens
    assert tokenizer.decode(tokens[:, opens:].flatten()) == text.read_text()[: 3 * (50 - opens)]
    for made in (repeated(tokenizer, rows=2, length=41), needles(tokenizer, rows=2, length=300)):
        assert [row[0].item() == 256 for row, _, _ in made] == [opens] * 2


def test_a_text_gives_as_many_sequences_as_it_has(text):
    tokens, _ = text_sequences(byte_tokenizer(), text, rows=10_000, length=100)
    assert len(tokens) == (len(text.read_text()) + 1) // 100  # and the end of the document
    with pytest.raises(ValueError, match=r"--text must have at least 2 sequences of 9999 tokens, got \d+ tokens"):
        text_sequences(byte_tokenizer(), text, rows=2, length=9999, least=2)


def test_python_itself_is_the_text_where_none_is_given():
    tokens, name = text_sequences(byte_tokenizer(), None, rows=2, length=64)
    assert tokens.shape == (2, 64) and "standard library" in name


@pytest.mark.parametrize("opens", [False, True])
def test_the_second_half_repeats_the_first_and_the_key_is_what_follows(opens):
    for tokens, queries, keys in repeated(byte_tokenizer(opens=opens), rows=2, length=41):
        queries, keys = torch.tensor(queries), torch.tensor(keys)
        assert (tokens[queries] == tokens[keys - 1]).all() and (tokens[queries + 1] == tokens[keys]).all()
        assert (queries - keys == 19).all() and len(tokens) == opens + 40 and tokens[opens:].max() < 256


def test_keys_of_a_needle_are_the_tokens_that_are_written():
    tokenizer = byte_tokenizer(opens=True)
    for tokens, queries, keys in needles(tokenizer, rows=3, length=300):
        said = tokenizer.decode(tokens[keys])
        assert said.strip().isdigit() and len(tokens) == 300 and queries[-1] == 299
        text = tokenizer.decode(tokens) + said[-1]
        assert text.endswith(f" is{said}") and text.count(said) == 2
    assert needles(tokenizer, rows=3, length=60) == []
