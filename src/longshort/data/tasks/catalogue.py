"""Every task by name, with its published settings, and the one function that opens any of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshort.data.corpus import SPLITS
from longshort.data.errors import DataError
from longshort.data.tasks import listops, loaders, passkey, pathfinder, recall, retrieval
from longshort.data.tasks.examples import Examples, Task
from longshort.data.tasks.generated import Draw, DrawProgress, generated
from longshort.data.tokenizer import load_tokenizer, tokenizer_checksum
from longshort.spelling import closest

Opened = tuple[Mapping[str, Examples], str, dict[str, Any]]
"""Splits, their fingerprint, and the other fields of a `Task` that depend on the settings."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The settings of a task; None means the published value. A task refuses settings that it does not have."""

    path: str | None = None
    """Folder or file to read the task from: text, image and smnist only. For retrieval, a folder of `longshort data`
    whose text hides the needles of the kinds in books."""
    length: int | None = None
    """Tokens of the longest example, for listops, text, recall, passkey and retrieval; the published length if None."""
    seed: int = 0
    """Seed of the generated examples, or of the choice of validation examples; training has its own seed, run.seed."""
    train: int | None = None
    """Number of training examples (for a task read from files, the first this many); as published if None."""
    validation: int | None = None
    """Number of validation examples; as published if None."""
    test: int | None = None
    """Number of test examples; as published if None."""
    paddles: int | None = None
    """Pathfinder only: dashes per long curve, from 4 to 14 (6 is easy, 9 medium, 14 hard); 14 if None."""
    pairs: int | None = None
    """Recall only: number of key-value pairs, and also of queries; 64 if None."""
    symbols: int | None = None
    """Recall only: size of the vocabulary, half of it keys and half values; 8,192 if None."""
    digits: int | None = None
    """Passkey only: digits of the number to recall; 5 if None."""
    tokenizer: str | None = None
    """Retrieval only: bytes, a tokenizer.json, or a folder with one; if None, that of `path`, else bytes."""
    kinds: str | None = None
    """Retrieval only: the kinds of examples, separated by commas; if None, all, without `path` those in no books."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How a task is made."""

    defaults: Mapping[str, int]
    """Its settings and their published values; for a generated task, also the number of examples per split."""
    open: Callable[..., Opened]
    """Called with the task's name, its values and settings, and the cache, workers and progress of `open_task`."""
    vocab_size: int | None = None
    """None means the setting `symbols`, or that of the tokenizer."""
    n_classes: int | None = None
    length: int | None = None
    """None means the setting `length`."""
    padding: int | None = None
    texts: tuple[str, ...] = ()
    """Its settings that are texts."""


def task_length(name: str, settings: TaskSettings | None = None) -> int:
    """Tokens per sequence of the task, without opening it.

    >>> task_length("listops")
    2000
    """
    values = _values(name, settings or TaskSettings())
    return _kind(name).length or values["length"]


def task_vocabulary(name: str, settings: TaskSettings | None = None) -> int:
    """Vocabulary size of the task, without opening it.

    >>> task_vocabulary("listops"), task_vocabulary("recall", TaskSettings(symbols=64))
    (16, 64)
    """
    settings = settings or TaskSettings()
    kind, values = _kind(name), _values(name, settings)
    if "tokenizer" in kind.texts:
        return load_tokenizer(_tokenizer(settings)).vocab_size
    return kind.vocab_size or values["symbols"]


def classes_of(name: str) -> int | None:
    """Number of classes of the task; None if its targets are tokens at marked positions."""
    return _kind(name).n_classes


def open_task(
    name: str,
    settings: TaskSettings | None = None,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: DrawProgress | None = None,
) -> Task:
    """The task of this name: generated, found in the cache, or read from its files.

    Args:
        cache: Where generated examples are kept; if None, $LONGSHORT_CACHE, else ~/.cache/longshort.
        workers: Number of generating processes; one per core if None. The examples do not depend on it.
        progress: Called with the number of examples generated so far and the total.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as cache:
    ...     settings = TaskSettings(length=64, train=20, validation=5, test=5)
    ...     task = open_task("listops", settings, cache=Path(cache))
    >>> task.vocab_size, task.n_classes, task.length, len(task.splits["train"])
    (16, 10, 64, 20)
    """
    settings = settings or TaskSettings()
    kind, values = _kind(name), _values(name, settings)
    if workers is not None and (type(workers) is not int or workers < 1):
        raise DataError(f"workers must be an integer >= 1, got {workers!r}")
    splits, fingerprint, more = kind.open(name, values, settings, cache=cache, workers=workers, progress=progress)
    return Task(
        name=name,
        n_classes=kind.n_classes,
        length=kind.length or values["length"],
        padding=kind.padding,
        splits=splits,
        fingerprint=fingerprint,
        **more,
    )


def _kind(name: str) -> _Kind:
    if name not in TASKS:
        near = closest(name, TASKS, cutoff=0.4)
        hint = f"; did you mean {near}?" if near else ""
        raise DataError(f"a task must be one of {', '.join(TASKS)}, got {name!r}{hint}")
    return TASKS[name]


def _values(name: str, settings: TaskSettings) -> dict[str, int]:
    """The settings that the task has, with published values for those not given."""
    kind = _kind(name)
    if type(settings.seed) is not int:
        raise DataError(f"seed of {name} must be an integer, got {settings.seed!r}")
    counts = () if "train" in kind.defaults else SPLITS  # of a task read from files: all if None
    values = {}
    for field in dataclasses.fields(TaskSettings):
        given = getattr(settings, field.name)
        if field.name in ("seed", *kind.texts, *counts):
            continue
        if given is not None and field.name not in kind.defaults:
            known = ["seed", *kind.texts, *kind.defaults, *counts]
            raise DataError(f"{name} has no setting {field.name!r}; it has {', '.join(known)}")
        if field.name in kind.defaults:
            values[field.name] = kind.defaults[field.name] if given is None else given
            if type(values[field.name]) is not int or values[field.name] < 1:
                raise DataError(f"{field.name} of {name} must be an integer >= 1, got {given!r}")
    return values


def _first_rows(splits: Mapping[str, Examples], settings: TaskSettings) -> dict[str, Examples]:
    counts = {split: getattr(settings, split) for split in SPLITS}
    for split, count in counts.items():
        if count is not None and not 1 <= count <= len(splits[split]):
            raise DataError(f"{split} must be from 1 to the {len(splits[split])} examples of the file, got {count}")
    return {
        split: examples if counts[split] is None else examples.chosen(range(counts[split]))
        for split, examples in splits.items()
    }


def _draws(draw: Draw, check: Callable[..., None]) -> Callable[..., Opened]:
    """How a generated task is opened."""

    def opened(name: str, values: dict[str, int], settings: TaskSettings, **where: Any) -> Opened:
        counts = {split: values[split] for split in SPLITS}
        options = {key: value for key, value in values.items() if key not in SPLITS}
        try:
            check(**options)
        except ValueError as error:
            raise DataError(f"{name}: {error}") from None
        size = _kind(name).vocab_size or values["symbols"]
        made = generated(name, draw, options, counts=counts, seed=settings.seed, vocab_size=size, **where)
        return *made, {"vocab_size": size}

    return opened


def _read(reader: Callable[..., tuple[dict[str, Examples], str]], file: str) -> Callable[..., Opened]:
    """How a task is opened that is read from files; `file` says what they are."""

    def opened(name: str, values: dict[str, int], settings: TaskSettings, **where: Any) -> Opened:
        if settings.path is None:
            raise DataError(f"{name} is read from files; give its path: {file}")
        splits, fingerprint = reader(Path(settings.path), seed=settings.seed, **values)
        return _first_rows(splits, settings), fingerprint, {"vocab_size": _kind(name).vocab_size}

    return opened


def _tokenizer(settings: TaskSettings) -> str:
    return settings.tokenizer or settings.path or "bytes"


def _retrieval(name: str, values: dict[str, int], settings: TaskSettings, **where: Any) -> Opened:
    """The kinds take turns, so no example is left out, even if it should repeat another."""
    tokenizer, length = load_tokenizer(_tokenizer(settings)), values["length"]
    kinds = tuple(kind for kind in retrieval.KINDS if settings.path or kind not in retrieval.IN_BOOKS)
    if settings.kinds is not None:
        kinds = tuple(kind.strip() for kind in settings.kinds.split(","))
    drawn = retrieval.Retrieval(tokenizer, settings.path)
    try:
        drawn.check(kinds, length)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    books = settings.path if set(kinds) & set(retrieval.IN_BOOKS) else None
    checksum = tokenizer_checksum(tokenizer.to_dict())
    splits, fingerprint = generated(
        name,
        retrieval.draw,
        {"length": length, "kinds": kinds, "tokenizer": _tokenizer(settings), "books": books},
        made_from={"length": length, "kinds": kinds, "tokenizer": checksum, "books": drawn.identity if books else None},
        counts={split: values[split] for split in SPLITS},
        seed=settings.seed,
        vocab_size=tokenizer.vocab_size,
        distinct=False,
        **where,
    )
    return splits, fingerprint, {"vocab_size": tokenizer.vocab_size, "kinds": kinds, "tokenizer": tokenizer}


def _pixels(file: str, side: int, what: str) -> _Kind:
    """A task of grey pictures of one size."""
    holds = f"an .npz of {what}: x_train (rows, {side}, {side}) uint8, y_train, x_test, y_test"
    return _Kind(
        defaults={},
        texts=("path",),
        open=_read(functools.partial(loaders.read_pixels, name=file, side=side), holds),
        vocab_size=loaders.PIXEL_VOCAB,
        n_classes=loaders.PIXEL_CLASSES,
        length=side * side,
    )


def _check_listops(length: int) -> None:
    if length < 16:
        raise ValueError(f"length must be at least 16, got {length}")


def _check_pathfinder(paddles: int) -> None:
    if not 4 <= paddles <= 14:
        raise ValueError(f"paddles must be from 4 to 14, since longer curves do not fit, got {paddles}")


_PROBES = {"train": 20_000, "validation": 1_000, "test": 1_000}

TASKS: dict[str, _Kind] = {
    "listops": _Kind(
        defaults={"length": 2000, "train": 96_000, "validation": 2_000, "test": 2_000},
        open=_draws(listops.draw, _check_listops),
        vocab_size=listops.VOCAB_SIZE,
        n_classes=listops.N_CLASSES,
        padding=listops.PADDING,
    ),
    "pathfinder": _Kind(
        defaults={"paddles": 14, "train": 160_000, "validation": 20_000, "test": 20_000},
        open=_draws(pathfinder.draw, _check_pathfinder),
        vocab_size=pathfinder.VOCAB_SIZE,
        n_classes=pathfinder.N_CLASSES,
        length=pathfinder.SIDE**2,
    ),
    "text": _Kind(
        defaults={"length": 4000},
        texts=("path",),
        open=_read(loaders.read_reviews, "a folder with *train.tsv and *test.tsv (label, rating, number, text)"),
        vocab_size=loaders.TEXT_VOCAB,
        n_classes=loaders.TEXT_CLASSES,
        padding=loaders.TEXT_PADDING,
    ),
    "image": _pixels("cifar10-gray.npz", 32, "grey CIFAR-10"),
    "smnist": _pixels("mnist.npz", 28, "MNIST"),
    "recall": _Kind(
        defaults={"length": 512, "pairs": 64, "symbols": 8192, **_PROBES},
        open=_draws(recall.draw, recall.check),
    ),
    "passkey": _Kind(
        defaults={"length": 1024, "digits": 5, **_PROBES},
        open=_draws(passkey.draw, passkey.check),
        vocab_size=passkey.VOCAB_SIZE,
    ),
    "retrieval": _Kind(defaults={"length": 1024, **_PROBES}, texts=("path", "tokenizer", "kinds"), open=_retrieval),
}
"""Tasks by the names that `task=` takes. Sizes and lengths are those of Long Range Arena, and of the MQAR paper."""
