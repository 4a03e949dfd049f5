"""Opening tasks: generated once and found again, the same on any number of processes, and refused with reasons."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from longshort.data import DataError
from longshort.data.tasks import TASKS, Examples, TaskSettings, generated, listops, open_task, task_length

SMALL = {"train": 30, "validation": 4, "test": 6}


def rows(task):
    return {split: [(t.tolist(), a) for t, a in (ex[i] for i in range(len(ex)))] for split, ex in task.splits.items()}


def test_the_examples_do_not_depend_on_the_number_of_processes(tmp_path):
    settings = TaskSettings(length=32, train=100, validation=20, test=20)
    one = open_task("listops", settings, cache=tmp_path / "one", workers=1)
    two = open_task("listops", settings, cache=tmp_path / "two", workers=2)
    assert rows(one) == rows(two) and one.fingerprint == two.fingerprint


def _pair(key):
    """One of a hundred rows, so that doubles are drawn often."""
    value = int.from_bytes(key.encode(), "big") % 100
    return divmod(value, 10), value


def _pairs(cache, *, train):
    counts = {"train": train, "validation": 10, "test": 20}
    splits, _ = generated.generated("pairs", _pair, {}, counts=counts, seed=0, vocab_size=10, cache=cache, workers=1)
    return {split: examples.labels.tolist() for split, examples in splits.items()}


def test_no_row_is_in_two_splits_or_twice_in_one(tmp_path):
    found = [value for values in _pairs(tmp_path, train=40).values() for value in values]
    assert len(set(found)) == len(found) == 70


def test_more_training_rows_leave_the_other_splits_as_they_were(tmp_path):
    few, many = (_pairs(tmp_path, train=train) for train in (5, 60))
    assert few["test"] == many["test"] and few["validation"] == many["validation"]
    assert few["train"] == many["train"][:5]


def test_another_seed_gives_other_rows(tmp_path):
    zero, one = (open_task("listops", TaskSettings(length=32, seed=s, **SMALL), cache=tmp_path) for s in (0, 1))
    assert rows(zero) != rows(one) and zero.fingerprint != one.fingerprint


def test_the_second_call_finds_the_rows_on_disk(tmp_path, monkeypatch):
    settings = TaskSettings(length=32, **SMALL)
    first = rows(open_task("listops", settings, cache=tmp_path))
    monkeypatch.setattr(generated, "_drawn", None)
    assert rows(open_task("listops", settings, cache=tmp_path)) == first


def test_those_that_want_the_same_rows_at_once_draw_them_once(tmp_path, monkeypatch):
    drawn, draw = [], generated._drawn
    monkeypatch.setattr(generated, "_drawn", lambda *given: drawn.append(given) or time.sleep(0.2) or draw(*given))
    with ThreadPoolExecutor(3) as callers:
        first, *others = callers.map(lambda train: _pairs(tmp_path, train=train), [10] * 3)
    assert len(drawn) == 1 and others == [first] * 2


def test_a_failed_generation_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "save", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        open_task("listops", TaskSettings(length=32, **SMALL), cache=tmp_path)
    assert list((tmp_path / "tasks").iterdir()) == []


def test_a_damaged_cache_is_named(tmp_path):
    settings = TaskSettings(length=32, **SMALL)
    open_task("listops", settings, cache=tmp_path)
    (path,) = tmp_path.glob("tasks/*/train-offsets.npy")
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"damaged .* remove the folder"):
        open_task("listops", settings, cache=tmp_path)


def test_too_few_distinct_rows_end_in_one_line(tmp_path):
    with pytest.raises(DataError, match="too few distinct examples"):
        generated.generated(
            "coin", _coin, {}, counts={"train": 2, "validation": 1, "test": 1}, seed=0, vocab_size=2, cache=tmp_path
        )


def test_asking_for_more_rows_than_there_are_ends_soon_however_many_were_asked_for(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(generated, "_in_order", lambda *_: (drawn.append(i) or ([i % 50], 0) for i in range(200_000)))
    counts = {"train": 10_000, "validation": 1, "test": 1}
    with pytest.raises(DataError, match="too few distinct examples: after 50,"):
        generated.generated("coin", _coin, {}, counts=counts, seed=0, vocab_size=50, workers=1, cache=tmp_path)
    assert len(drawn) < 11_000


def _coin(key):
    return [listops.draw(key, length=16)[1] % 2], 0


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("list-ops", {}, "one of listops, pathfinder, text.* got 'list-ops'; did you mean listops"),
        ("listops", {"pairs": 3}, "listops has no setting 'pairs'; it has seed, length, train"),
        ("listops", {"length": 4}, "listops: length must be at least 16, got 4"),
        ("listops", {"train": 0}, "train of listops must be an integer >= 1, got 0"),
        ("listops", {"seed": "a"}, "seed of listops must be an integer, got 'a'"),
        ("listops", {"length": 100.5}, "length of listops must be an integer >= 1, got 100.5"),
        ("image", {"length": 9}, "image has no setting 'length'; it has seed, path, train, validation, test"),
        ("pathfinder", {"paddles": 20}, "paddles must be from 4 to 14"),
        ("recall", {"length": 100}, "pairs must be from 1 to a quarter of the length 100, got 64"),
        ("text", {}, "text is read from files; give its path: a folder with"),
    ],
)
def test_settings_that_cannot_be_end_in_one_line(name, settings, words, tmp_path):
    with pytest.raises(DataError, match=words):
        open_task(name, TaskSettings(**settings), cache=tmp_path)


def test_published_lengths():
    assert {name: task_length(name) for name in TASKS} == {
        "listops": 2000,
        "pathfinder": 1024,
        "text": 4000,
        "image": 1024,
        "smnist": 784,
        "recall": 512,
        "passkey": 1024,
        "retrieval": 1024,
    }


def test_examples_refuse_arrays_that_do_not_fit():
    tokens, offsets = np.arange(4, dtype=np.uint8), np.array([0, 2, 4])
    with pytest.raises(ValueError, match="exactly one of labels and targets"):
        Examples(tokens=tokens, offsets=offsets)
    with pytest.raises(ValueError, match="must have 2 entries"):
        Examples(tokens=tokens, offsets=offsets, labels=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="from 0 to the 4 tokens"):
        Examples(tokens=tokens, offsets=offsets[:2], labels=np.zeros(1, np.int64))
    with pytest.raises(IndexError, match="from 0 to 1, got 2"):
        Examples(tokens=tokens, offsets=offsets, labels=np.zeros(2, np.int64))[2]


@pytest.mark.parametrize("workers", [0, -1, 1.5, True])
def test_a_wrong_number_of_workers_is_a_clear_error(workers, tmp_path):
    with pytest.raises(DataError, match=f"workers must be an integer >= 1, got {workers}"):
        open_task("listops", TaskSettings(length=32, **SMALL), cache=tmp_path, workers=workers)
