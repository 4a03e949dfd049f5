"""Retrieval: what is asked for was said once, answers are exact, and every tokenizer will do."""

import re
from collections import Counter

import numpy as np
import pytest

from longshort.data.errors import DataError
from longshort.data.prepare import prepare
from longshort.data.tasks import TaskSettings, open_task, task_vocabulary
from longshort.data.tasks.retrieval import HOPS, IN_BOOKS, KINDS, LEAST_DISTANCE, PAIRS, Retrieval, distances
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer

TEXT = " ".join(f"Chapter {n}. It rained on day {n}. The boat left with {n} men, and nobody wept." for n in range(400))
BYTES = ByteTokenizer()
BPE = BPETokenizer.train([TEXT, "The secret number of a variable is VAR = 12345."], 400)


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    for name in ("train", "validation"):
        (folder / f"{name}.txt").write_text(TEXT if name == "train" else TEXT.replace("rained", "snowed"))
    return prepare(folder / "train.txt", folder / "tokens", validation=folder / "validation.txt").folder


@pytest.fixture(scope="module", params=[BYTES, BPE], ids=["bytes", "bpe"])
def retrieval(request, books):
    """Of the vocabulary of the books, and of another."""
    return Retrieval(request.param, books)


def said(retrieval, kind, number=0, length=600):
    """The text of an example without its answer, and the answer."""
    tokens, targets = retrieval.draw(kind, f"key/{number}", length=length)
    asked = np.flatnonzero(targets >= 0)
    assert asked.tolist() == list(range(asked[0], length))
    assert tokens[asked[1:]].tolist() == targets[asked[:-1]].tolist()  # each answer token is the input that follows
    return retrieval.tokenizer.decode(tokens[: asked[0] + 1]), retrieval.tokenizer.decode(targets[asked])


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_depends_on_its_key_alone_and_has_the_asked_length(kind, retrieval):
    again = Retrieval(retrieval.tokenizer, retrieval.books)
    for length in (retrieval.least(kind), 700):
        for number in range(20):
            tokens, targets = retrieval.draw(kind, f"key/{number}", length=length)
            assert tokens.shape == targets.shape == (length,) and (targets >= 0).any()
            assert tokens.min() >= 0 and max(tokens.max(), targets.max()) < retrieval.tokenizer.vocab_size
    assert all(map(np.array_equal, again.draw(kind, "key/19", length=700), (tokens, targets)))
    assert not np.array_equal(retrieval.draw(kind, "key/18", length=700)[0], tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_beginning_goes_before_the_example_and_counts_in_its_length(kind, retrieval):
    begun = Retrieval(retrieval.tokenizer, retrieval.books, beginning=(256, 3))
    assert begun.least(kind) == retrieval.least(kind) + 2
    tokens, targets = begun.draw(kind, "key", length=602)
    expected = retrieval.draw(kind, "key", length=600)
    assert tokens[:2].tolist() == [256, 3] and targets[:2].tolist() == [-100, -100]
    assert np.array_equal(tokens[2:], expected[0]) and np.array_equal(targets[2:], expected[1])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("needle")])
def test_the_needle_asked_for_is_among_those_said_and_its_number_nowhere_else(kind, retrieval):
    depths = []
    for number in range(12):
        text, answer = said(retrieval, kind, number)
        *needles, (asked, nothing) = re.findall(r"The secret number of (\w+) is(?: (\d{5})\.)?", text)
        assert nothing == "" and dict(needles)[asked] == answer.strip() and text.count(answer) == 1
        assert len(dict(needles)) == (4 if kind.startswith("needles") else 1) and text.endswith(f"of {asked} is")
        depths.append(text.index(answer) / len(text))
    assert min(depths) < 0.35 and max(depths) > 0.55


def test_books_are_those_of_the_split_and_needles_stand_between_sentences(retrieval):
    train, test = (
        retrieval.tokenizer.decode(retrieval.draw("needle-books", "a", length=600, split=split)[0])
        for split in ("train", "test")
    )
    assert "rained" in train and "snowed" not in train
    assert "snowed" in test and "rained" not in test  # there is no test text, so that of validation
    assert re.search(r"\. The secret number of \w+ is \d{5}\. ", train)


def test_the_answer_is_the_chain_and_no_other_variable(retrieval):
    for number in range(8):
        text, answer = said(retrieval, "variables", number)
        given = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text))
        asked = re.search(r"with the value (\d{5}) are:$", text)[1]
        chain = answer.split()
        assert given[chain[0]] == asked and [given[name] for name in chain[1:]] == chain[:-1] and len(chain) == HOPS + 1
        assert not {*given} - {*chain} & {name for name, value in given.items() if value in (asked, *chain)}
        assert len(given) == 9


def test_queries_of_recall_have_one_pair_before_them_at_any_distance(retrieval):
    found = []
    for number in range(30):
        tokens, targets = retrieval.draw("recall", f"key/{number}", length=512)
        queries = np.flatnonzero(targets >= 0)
        away = distances(tokens, targets)
        assert len(queries) == PAIRS and away.min() >= LEAST_DISTANCE
        assert (tokens[queries - away] == tokens[queries]).all() and (
            tokens[queries - away + 1] == targets[queries]
        ).all()
        assert set(Counter(tokens[np.isin(tokens, tokens[queries])].tolist()).values()) == {2}
        found += away.tolist()
    near, far = sum(d < 16 for d in found), sum(d >= 128 for d in found)
    assert near > 60 and far > 60  # on a logarithmic scale both are 2 of 7 octaves


def test_symbols_are_whole_texts(retrieval):
    tokenizer = retrieval.tokenizer
    assert all(tokenizer.encode(tokenizer.decode([s])).tolist() == [s] for s in retrieval.symbols)
    assert tokenizer.end_of_document not in retrieval.symbols


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kinds": "needles"}, "retrieval: kinds must be of needle-noise, .* got 'needles'"),
        ({"kinds": "needle-books"}, "needle-books must have books: give the folder"),
        ({"length": 64}, "retrieval: length must be at least 133 for needle-noise with this tokenizer, got 64"),
        ({"pairs": 3}, "retrieval has no setting 'pairs'; it has seed, path, tokenizer, kinds, length"),
        ({"path": "nowhere"}, "nowhere: no such tokenizer"),
    ],
)
def test_settings_that_cannot_be_end_in_one_line(settings, words, tmp_path):
    with pytest.raises(DataError, match=words):
        open_task("retrieval", TaskSettings(**settings), cache=tmp_path)


def test_the_task_takes_turns_and_knows_its_files_by_their_contents(books, tmp_path):
    sizes = {"length": 300, "train": 12, "validation": 6, "test": 6}
    task = open_task("retrieval", TaskSettings(path=str(books), **sizes), cache=tmp_path)
    assert task.kinds == KINDS and task.vocab_size == 257 == task_vocabulary("retrieval", TaskSettings(path=str(books)))
    counts = [int((task.splits["train"][i][1] >= 0).sum()) for i in range(12)]
    assert [counts[i] for i in (0, 5, 6, 11)] == [6, PAIRS, 6, PAIRS]
    moved = tmp_path / "moved"
    moved.symlink_to(books)
    again = open_task("retrieval", TaskSettings(path=str(moved), **sizes), cache=tmp_path)
    assert again.fingerprint == task.fingerprint
    BPE.save(tmp_path / "bpe.json")
    other = TaskSettings(path=str(books), tokenizer=str(tmp_path / "bpe.json"), **sizes)
    assert open_task("retrieval", other, cache=tmp_path).fingerprint != task.fingerprint
    plain = open_task("retrieval", TaskSettings(**sizes), cache=tmp_path)
    assert not {*plain.kinds} & {*IN_BOOKS} and plain.tokenizer.vocab_size == 257


def test_tokens_beyond_16_bits_stay_as_they_are(tmp_path, monkeypatch):
    class Shifted(ByteTokenizer):
        vocab_size = 300_000

        def encode(self, text):
            return super().encode(text).astype(np.uint32) + 200_000

        def decode(self, ids):
            return super().decode([i - 200_000 for i in ids if 200_000 <= i < 200_257])

    monkeypatch.setattr("longshort.data.tasks.catalogue.load_tokenizer", lambda path: Shifted())
    monkeypatch.setattr("longshort.data.tasks.retrieval.load_tokenizer", lambda path: Shifted())
    sizes = {"length": 256, "train": 1, "validation": 1, "test": 1, "kinds": "needle-noise"}
    task = open_task("retrieval", TaskSettings(tokenizer="shifted", **sizes), cache=tmp_path)
    assert "The secret number of" in Shifted().decode(task.splits["test"][0][0].tolist())
