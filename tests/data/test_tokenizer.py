"""Tokenizers: lossless, and never an end of document out of text."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort.data.errors import DataError
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer, load_tokenizer, tokenizer_from_dict

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "def f(x):\n    return x\n"] * 3
BPE = BPETokenizer.train(TEXTS, vocab_size=300)
TOKENIZERS = [ByteTokenizer(), BPE]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=st.text())
def test_any_text_survives_encoding_and_decoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=st.text())
def test_every_number_is_in_the_vocabulary(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint16
    assert (ids < tokenizer.vocab_size).all()


@given(data=st.binary())
def test_any_bytes_decode_with_replacement(data):
    assert ByteTokenizer().decode(list(data)) == data.decode(errors="replace")


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_text_that_quotes_the_end_token_does_not_end_its_document(tokenizer):
    text = "a<|endoftext|>b"
    ids = tokenizer.encode(text)
    assert tokenizer.end_of_document not in ids
    assert tokenizer.decode(ids) == text


def test_an_end_token_that_a_file_does_not_call_special_is_that_all_the_same():
    data = BPETokenizer.train(["to be or not to be"], vocab_size=300).to_dict()
    data["added_tokens"][0]["special"] = False
    tokenizer = BPETokenizer.from_dict(data)
    assert tokenizer.end_of_document not in tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.decode([tokenizer.end_of_document]) == ""


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_end_of_document_has_no_text(tokenizer):
    assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.end_of_document]) == "a"


@pytest.mark.parametrize("ids", [[257], [-1], [0, 70_000]])
def test_byte_tokenizer_refuses_numbers_beyond_its_vocabulary(ids):
    with pytest.raises(ValueError, match="ids must be from 0 to 256, got"):
        ByteTokenizer().decode(ids)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_tokenizer_comes_back_from_its_dictionary(tokenizer):
    back = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert type(back) is type(tokenizer)
    assert back.fingerprint == tokenizer.fingerprint
    assert back.encode("the cat").tolist() == tokenizer.encode("the cat").tolist()


def test_bpe_comes_back_from_its_file_and_from_its_folder(tmp_path):
    BPE.save(tmp_path / "tokenizer.json")
    for place in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        assert BPETokenizer.load(place).fingerprint == BPE.fingerprint
        assert load_tokenizer(place).fingerprint == BPE.fingerprint


@settings(max_examples=5)
@given(seed=st.integers(0, 4))
def test_training_twice_gives_the_same_tokenizer(seed):
    texts = [f"{seed} {text} {i}" for i, text in enumerate(TEXTS)]
    first, second = (BPETokenizer.train(iter(texts), vocab_size=320) for _ in range(2))
    assert first.to_dict() == second.to_dict()


def test_the_truncation_and_padding_that_transformers_saved_are_left_out(tmp_path):
    import tokenizers

    saved = tokenizers.Tokenizer.from_str(json.dumps(BPE.to_dict()))
    saved.enable_truncation(4)
    saved.enable_padding(length=64)
    saved.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(TEXTS[0]).tolist() == BPE.encode(TEXTS[0]).tolist()


def test_bpe_is_shorter_than_bytes():
    assert len(BPE.encode("the cat sat")) < len("the cat sat")


def test_different_vocabularies_have_different_fingerprints():
    other = BPETokenizer.train(["zebra quagga"] * 5, vocab_size=300)
    assert len({BPE.fingerprint, other.fingerprint, ByteTokenizer().fingerprint}) == 3


def test_vocabulary_smaller_than_the_bytes_is_refused():
    with pytest.raises(DataError, match=r"vocab_size must be from 257 .* got 256"):
        BPETokenizer.train(["a"], vocab_size=256)


def test_a_vocabulary_that_no_memory_holds_is_refused_before_the_process_is_aborted():
    with pytest.raises(DataError, match=r"vocab_size must be from 257 .* to 10,000,000, got 99999999999"):
        BPETokenizer.train(["a"], vocab_size=99_999_999_999)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "must be the object"),
        ("{}", "not a tokenizer.json"),
        ('{"model": 3}', "not a tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path, content, complaint):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(DataError, match=complaint) as raised:
        load_tokenizer(path)
    assert str(path) in str(raised.value)


def test_a_vocabulary_without_an_end_of_document_is_refused():
    data = BPE.to_dict()
    data["added_tokens"] = []
    data["model"]["vocab"]["<|nothing|>"] = data["model"]["vocab"].pop("<|endoftext|>")
    with pytest.raises(DataError, match="has no end-of-document token"):
        tokenizer_from_dict(data)


def test_a_missing_tokenizer_says_what_would_be_right(tmp_path):
    with pytest.raises(DataError, match=r"name a tokenizer\.json, a folder with one, or 'bytes'"):
        load_tokenizer(tmp_path / "nowhere")


def test_loading_bytes_as_bpe_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(ByteTokenizer().to_dict()))
    with pytest.raises(DataError, match="name a BPE vocabulary"):
        BPETokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "learned_from"),
    [
        ("x" * 1000, "x" * 1000),
        ("x" * 2500, "\n".join(["x" * 1000, "x" * 1000, "x" * 500])),
        (f"to be {'ab' * 600} or", f"to be {'ab' * 500}\n{'ab' * 100} or"),
        (f"to{' ' * 3000}be", f"to{' ' * 1000}be"),
        ("to be " * 1000, "to be " * 1000),
    ],
)
def test_merges_are_not_learned_from_endless_words(text, learned_from):
    ours, theirs = (BPETokenizer.train([each, *TEXTS], vocab_size=300) for each in (text, learned_from))
    assert ours.to_dict() == theirs.to_dict()
    assert ours.decode(ours.encode(text)) == text  # all of it is encoded
