"""Dividing text into train, validation and test."""

import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.data import reading
from longshort.data.corpus import SPLITS, open_corpus
from longshort.data.errors import DataError
from longshort.data.split import ByDocument, ByPlace, divide

SHARES = (0.9, 0.05, 0.05)


def corpus_of(folder, texts):
    path = Path(folder, "a.jsonl")
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return open_corpus([path])


def assigned_documents(division):
    """[(split, text)] of whole documents, parts of one split joined up to their end."""
    open_parts, done = {}, []
    for piece in division.pieces():
        open_parts[piece.split] = open_parts.get(piece.split, "") + piece.text
        if piece.ends_document:
            done.append((piece.split, open_parts.pop(piece.split)))
    assert not any(open_parts.values())
    return done


@given(n=st.integers(40, 200), seed=st.integers())
def test_enough_documents_are_divided_whole_and_leave_no_split_empty(n, seed):
    texts = [f"document {i}" for i in range(n)]
    with tempfile.TemporaryDirectory() as folder:
        division = divide(corpus_of(folder, texts), SHARES, seed)
        assert isinstance(division, ByDocument)
        found = assigned_documents(division)
    assert [text for _, text in found] == texts
    sizes = Counter(split for split, _ in found)
    assert set(sizes) == set(SPLITS)
    assert abs(sizes["train"] - 0.9 * n) < 4


def test_the_seed_chooses_the_documents(tmp_path):
    corpus = corpus_of(tmp_path, [f"document {i}" for i in range(100)])
    held_out = [
        [text for split, text in assigned_documents(divide(corpus, SHARES, seed)) if split != "train"]
        for seed in (0, 0, 1)
    ]
    assert held_out[0] == held_out[1] != held_out[2]


@given(
    texts=st.lists(st.text("ab\n", min_size=1).filter(str.strip), min_size=1, max_size=3),
    longest=st.integers(1, 7),
    shares=st.sampled_from([SHARES, (0.5, 0.25, 0.25), (0.8, 0.2, 0.0), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0)]),
)
def test_few_documents_are_cut_by_place_without_loss(texts, longest, shares):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "LONGEST_PIECE", longest)
        found = assigned_documents(divide(corpus_of(folder, texts), shares, 0))
    rest = iter(found)
    for text in texts:
        parts = {}
        while "".join(parts.values()) != text:
            split, part = next(rest)
            assert split not in parts
            parts[split] = part
        assert list(parts) == [split for split in SPLITS if split in parts]
        for split, share in zip(SPLITS, shares, strict=True):
            assert abs(len(parts.get(split, "")) - share * len(text)) <= 1
    assert list(rest) == []


def test_one_book_gives_its_end_to_validation_and_test(tmp_path):
    found = assigned_documents(divide(corpus_of(tmp_path, ["0123456789" * 10]), SHARES, 0))
    assert [(split, len(text)) for split, text in found] == [("train", 90), ("validation", 5), ("test", 5)]


@pytest.mark.parametrize("shares", [(0.9, 0.05, 0.1), (0.5, 0.5), (1.1, -0.1, 0.0), (0.0, 0.5, 0.5)])
def test_shares_that_make_no_sense_are_refused(tmp_path, shares):
    with pytest.raises(DataError, match=r"split must .*, got "):
        divide(corpus_of(tmp_path, ["a"]), shares, 0)


def test_a_corpus_that_grows_between_the_two_readings_is_an_error(tmp_path):
    division = divide(corpus_of(tmp_path, ["one"]), SHARES, 0)
    assert isinstance(division, ByPlace)
    corpus_of(tmp_path, ["one", "two"])
    with pytest.raises(DataError, match="changed while it was read"):
        list(division.pieces())
