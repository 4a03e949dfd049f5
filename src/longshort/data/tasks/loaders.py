"""Tasks that are read from plain files: byte-level text classification, grey pixels of CIFAR-10, sequential MNIST.

Nothing is downloaded and nothing is unpickled. A tenth of the training examples, chosen by the seed, is held out for
validation, as Long Range Arena (arXiv 2011.04006) does for images.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.data.errors import DataError
from longshort.data.permutation import Permutation
from longshort.data.reading import COMPRESSIONS, open_text
from longshort.data.tasks.examples import Examples

VALIDATION_SHARE = 10
TEXT_VOCAB, TEXT_CLASSES, TEXT_PADDING = 257, 2, 0
PIXEL_VOCAB, PIXEL_CLASSES = 256, 10


def read_reviews(path: Path, *, length: int, seed: int) -> tuple[dict[str, Examples], str]:
    """Reviews from a folder with one *train.tsv and one *test.tsv, each plain or .gz, .xz, .zst.

    A line holds label (0 or 1), rating, number and text, separated by tabs. Tokens are the bytes of the text plus 1,
    cut at `length`; 0 is padding.
    """
    files = {split: _one_file(path, f"*{split}.tsv") for split in ("train", "test")}
    rows = {split: list(_reviews(file, length)) for split, file in files.items()}
    labelled = {split: Examples.of_rows(found, vocab_size=TEXT_VOCAB) for split, found in rows.items()}
    return _with_validation(labelled["train"], labelled["test"], seed), _fingerprint(files.values(), length, seed)


def read_pixels(path: Path, *, name: str, side: int, seed: int) -> tuple[dict[str, Examples], str]:
    """Grey pictures from an .npz file, or from the file `name` in a folder: x_train and x_test (examples, side, side)
    uint8, y_train and y_test (examples,) from 0 to 9. Each pixel is a token.
    """
    file = path / name if path.is_dir() else path
    arrays = read_arrays(file, ("x_train", "y_train", "x_test", "y_test"))
    splits = {}
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.dtype != np.uint8 or x.shape[1:] != (side, side):
            raise DataError(f"{file}: x_{split} must be uint8 (examples, {side}, {side}), got {x.dtype} {x.shape}")
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() <= 9):
            raise DataError(f"{file}: y_{split} must be {len(x)} classes from 0 to 9, got {y.dtype} {y.shape}")
        splits[split] = Examples.of_table(x.reshape(len(x), side * side), y)
    return _with_validation(splits["train"], splits["test"], seed), _fingerprint([file], side, seed)


def _with_validation(train: Examples, test: Examples, seed: int) -> dict[str, Examples]:
    if len(train) < VALIDATION_SHARE:
        raise DataError(f"the training split must have at least {VALIDATION_SHARE} examples, got {len(train)}")
    if not len(test):
        raise DataError("the test split must have at least 1 example, got none")
    order = Permutation(len(train), f"validation/{seed}")(np.arange(len(train)))
    held_out = len(train) // VALIDATION_SHARE
    return {"train": train.chosen(order[held_out:]), "validation": train.chosen(order[:held_out]), "test": test}


def _one_file(folder: Path, pattern: str) -> Path:
    found = sorted(file for ending in ("", *COMPRESSIONS) for file in folder.glob(pattern + ending))
    if len(found) != 1:
        endings = ", ".join(COMPRESSIONS)
        got = ", ".join(file.name for file in found) or "none"
        raise DataError(f"{folder}: must hold one file {pattern} (plain or {endings}), got {got}")
    return found[0]


def _reviews(file: Path, length: int) -> Iterator[tuple[NDArray[Any], int]]:
    with open_text(file) as (lines, _):
        for number, line in enumerate(lines, 1):
            parts = line.rstrip("\r\n").split("\t", 3)
            if len(parts) != 4 or parts[0] not in ("0", "1") or not parts[3]:
                got = line[:40]
                raise DataError(f"{file}, line {number}: must be label 0 or 1, rating, number and text, got {got!r}")
            text = parts[3].encode()[:length]
            yield np.frombuffer(text, dtype=np.uint8).astype(np.uint16) + 1, int(parts[0])


def read_arrays(file: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Some arrays of an .npz file, which must exist and hold no Python objects."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except KeyError as error:
        raise DataError(f"{file}: {error.args[0]}; it must hold the arrays {', '.join(names)}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{file}: not an .npz of plain arrays ({error}); it must hold {', '.join(names)}") from None


def _fingerprint(files: Any, *settings: int) -> str:
    digest = hashlib.sha256(repr(settings).encode())
    for file in files:
        with file.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()
