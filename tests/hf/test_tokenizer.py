"""Our tokenizers as transformers': the same numbers, there and back."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from longshort.data.tokenizer import BPETokenizer, ByteTokenizer, load_tokenizer, tokenizer_from_dict
from longshort.hf import fast_tokenizer

TEXTS = [
    "to be or not to be",
    "naïve café — 東京 🙂\n\n\ttab",
    "  spaces  ",
    "<|endoftext|>",
    "a<|endoftext|>b",
    "\x00\x7f\xad",
]
OURS = {
    "bytes": ByteTokenizer(),
    "bpe": BPETokenizer.train(["to be or not to be, that is the question"] * 3, vocab_size=280),
}


FAST_BYTES = fast_tokenizer(ByteTokenizer())


@pytest.fixture(scope="module", params=OURS)
def pair(request, tmp_path_factory):
    """Our tokenizer, and the one that AutoTokenizer finds in a folder."""
    folder = tmp_path_factory.mktemp(request.param)
    fast_tokenizer(OURS[request.param], max_length=77).save_pretrained(folder)
    return OURS[request.param], AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_text_has_the_same_numbers_and_comes_back(pair, text):
    ours, theirs = pair
    numbers = theirs(text)["input_ids"]
    assert numbers == ours.encode(text).tolist()
    assert theirs.decode(numbers) == text


@given(text=st.text())
def test_any_text_has_the_same_bytes(text):
    assert FAST_BYTES(text)["input_ids"] == list(text.encode())


@pytest.mark.parametrize("special", [True, False])
def test_only_a_special_token_begins_texts(special):
    inner = tokenizers.Tokenizer.from_str(json.dumps(OURS["bpe"].to_dict()))
    inner.add_tokens([tokenizers.AddedToken("<s>", special=special)])
    begin = inner.token_to_id("<s>")
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    ours = BPETokenizer(inner)
    fast = fast_tokenizer(ours)
    assert ours.beginning == (begin,)
    assert fast.bos_token_id == (begin if special else fast.eos_token_id)
    text = "to <s> be"  # what a text quotes stays what it is for ours
    assert fast(text, add_special_tokens=False).input_ids == ours.encode(text).tolist()


def test_the_end_of_a_document_ends_begins_and_pads_on_the_left(pair):
    ours, theirs = pair
    end = ours.end_of_document
    assert (theirs.eos_token_id, theirs.bos_token_id, theirs.pad_token_id) == (end, end, end)
    padded = theirs(["to be", "t"], padding=True)
    assert padded["attention_mask"][1][0] == 0 and padded["input_ids"][1][0] == end
    assert padded["attention_mask"][1][-1] == 1
    assert theirs.decode([end, *ours.encode("to")], skip_special_tokens=True) == "to"
    assert (len(theirs), theirs.model_max_length) == (ours.vocab_size, 77)


def test_bytes_that_are_no_text_are_shown_as_ours_shows_them():
    for numbers in ([195], [65, 255, 66]):
        assert FAST_BYTES.decode(numbers) == ByteTokenizer().decode(numbers)


def test_what_was_exported_reads_back_as_the_same_vocabulary(pair, tmp_path):
    ours, theirs = pair
    theirs.save_pretrained(tmp_path)
    back = load_tokenizer(tmp_path)
    assert (type(back), back.fingerprint, back.end_of_document) == (type(ours), ours.fingerprint, ours.end_of_document)


@pytest.mark.parametrize("change", ["merges", "vocab", "prefix", "unigram", "end"])
def test_what_differs_from_bytes_is_not_taken_for_them(change):
    data = json.loads(FAST_BYTES.backend_tokenizer.to_str())
    model = data["model"]
    if change == "merges":
        model["vocab"]["ab"], model["merges"] = 257, [["a", "b"]]
    elif change == "vocab":
        model["vocab"]["a"], model["vocab"]["b"] = model["vocab"]["b"], model["vocab"]["a"]
    elif change == "prefix":
        data["pre_tokenizer"]["add_prefix_space"] = True
    elif change == "unigram":
        data["model"] = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b", 0.0]]}
    else:
        data["added_tokens"][0]["content"] = "</s>"
    assert isinstance(tokenizer_from_dict(data), BPETokenizer)
