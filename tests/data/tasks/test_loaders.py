"""Tasks that are read: text by bytes, pictures by pixels, and one line about files that are not what they should be."""

import lzma
import zipfile

import numpy as np
import pytest

from longshort.data import DataError
from longshort.data.tasks import TaskSettings, open_task


@pytest.fixture
def reviews(tmp_path):
    train = "".join(f"{i % 2}\t{i}\t{i}\tReview number {i}, caf\u00e9.\n" for i in range(40))
    (tmp_path / "imdb-train.tsv.xz").write_bytes(lzma.compress(train.encode()))
    (tmp_path / "imdb-test.tsv").write_text("1\t9\t0\tGood.\n0\t2\t1\tBad.\n")
    return tmp_path


def pictures(path, rows=20, side=28, **changes):
    pixels = np.random.default_rng(0).integers(256, size=(rows, side, side)).astype(np.uint8)
    arrays = {"x_train": pixels, "y_train": np.arange(rows) % 10, "x_test": pixels[:5], "y_test": np.arange(5)}
    np.savez_compressed(path, **(arrays | changes))
    return path


def test_text_is_bytes_plus_one_cut_at_the_length(reviews):
    task = open_task("text", TaskSettings(path=str(reviews), length=20))
    assert (task.vocab_size, task.n_classes, task.length, task.padding) == (257, 2, 20, 0)
    tokens, label = task.splits["test"][0]
    assert bytes((tokens - 1).tolist()) == b"Good." and label == 1
    rows = [task.splits[split][i] for split in ("train", "validation") for i in range(len(task.splits[split]))]
    texts = {bytes((tokens - 1).tolist()): label for tokens, label in rows}
    assert texts == {f"Review number {i}, caf\u00e9.".encode()[:20]: i % 2 for i in range(40)}


def test_lines_that_end_as_on_windows_give_the_same_text(reviews):
    (reviews / "imdb-test.tsv").write_bytes(b"1\t9\t0\tGood.\r\n0\t2\t1\tBad.\r\n")
    test = open_task("text", TaskSettings(path=str(reviews))).splits["test"]
    assert [bytes((test[i][0] - 1).tolist()) for i in range(2)] == [b"Good.", b"Bad."]


def test_a_tenth_of_the_training_rows_is_for_validation_and_the_seed_chooses_it(reviews):
    chosen = []
    for seed in (0, 0, 1):
        task = open_task("text", TaskSettings(path=str(reviews), seed=seed))
        assert [len(task.splits[s]) for s in ("train", "validation", "test")] == [36, 4, 2]
        chosen.append(task.splits["validation"].tokens.tolist())
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize(("name", "side"), [("smnist", 28), ("image", 32)])
def test_pixels_are_tokens_row_by_row(name, side, tmp_path):
    path = pictures(tmp_path / "pictures.npz", side=side)
    task = open_task(name, TaskSettings(path=str(path), train=10))
    assert (task.vocab_size, task.n_classes, task.length, task.padding) == (256, 10, side * side, None)
    assert len(task.splits["train"]) == 10
    stored = np.load(path)
    assert (task.splits["test"][3][0] == stored["x_test"][3].reshape(-1)).all() and task.splits["test"][3][1] == 3


def test_pictures_compressed_further_are_the_same_task_in_another_file(tmp_path):
    path, smaller = pictures(tmp_path / "pictures.npz"), tmp_path / "smaller.npz"
    with zipfile.ZipFile(path) as known, zipfile.ZipFile(smaller, "w", zipfile.ZIP_LZMA) as packed:
        for name in known.namelist():
            packed.writestr(name, known.read(name))
    found = [open_task("smnist", TaskSettings(path=str(file))).splits["train"] for file in (path, smaller)]
    assert np.array_equal(found[0].tokens, found[1].tokens) and np.array_equal(found[0].labels, found[1].labels)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.zeros((20, 28, 27), np.uint8)}, r"x_train must be uint8 .* got uint8 \(20, 28, 27\)"),
        ({"y_test": np.array([10, 0, 0, 0, 0])}, "y_test must be 5 classes from 0 to 9"),
        (
            {"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.arange(0)},
            "the test split must have at least 1 example",
        ),
        ({"y_train": np.array([None] * 20, dtype=object)}, "not an .npz of plain arrays"),
    ],
)
def test_pictures_of_another_kind_are_refused(changes, words, tmp_path):
    path = pictures(tmp_path / "pictures.npz", **changes)
    with pytest.raises(DataError, match=words):
        open_task("smnist", TaskSettings(path=str(path)))


def test_files_that_are_missing_or_broken_end_in_one_line(tmp_path):
    for path, words in ((tmp_path / "none.npz", "cannot be read"), (tmp_path / "text.npz", "not an .npz")):
        if path.stem == "text":
            path.write_text("no archive")
        with pytest.raises(DataError, match=words):
            open_task("smnist", TaskSettings(path=str(path)))
    with pytest.raises(DataError, match=r"must hold one file \*train.tsv .* got none"):
        open_task("text", TaskSettings(path=str(tmp_path)))
    (tmp_path / "a-train.tsv").write_text("2\t1\t0\ttext\n")
    (tmp_path / "a-test.tsv").write_text("1\t1\t0\ttext\n")
    with pytest.raises(DataError, match=r"a-train.tsv, line 1: must be label 0 or 1"):
        open_task("text", TaskSettings(path=str(tmp_path)))
