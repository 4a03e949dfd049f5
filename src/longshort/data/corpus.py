"""Where text comes from: files, folders, Hugging Face datasets, and the standard library of the running Python.

A `Corpus` names its parts and yields their documents in pieces, in an order that never changes. `reading` reads one
file; `prepare` turns the text into tokens.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from longshort.data.errors import DataError
from longshort.data.reading import COMPRESSIONS, LAYOUTS, Piece, cut, read_pieces

__all__ = ["SPLITS", "Corpus", "DataError", "HubDataset", "TextFile", "open_corpus", "standard_library_corpus"]

SPLITS = ("train", "validation", "test")
HUB_PREFIX = "hf:"
_NAMED_AT_MOST = 4


@dataclass(frozen=True)
class TextFile:
    """One file of text."""

    path: Path
    name: str
    """The path relative to its source, which identifies the file wherever the source is."""
    size: int
    modified_ns: int

    @classmethod
    def at(cls, path: Path, name: str) -> TextFile:
        facts = path.stat()
        return cls(path, name, facts.st_size, facts.st_mtime_ns)

    def pieces(self) -> Iterator[Piece]:
        return read_pieces(self.path)

    def identity(self) -> list[Any]:
        return [self.name, self.size, self.modified_ns]


@dataclass(frozen=True)
class HubDataset:
    """One split of a dataset on the Hugging Face hub, read as a stream through the package `datasets`."""

    name: str
    config: str | None
    split: str | None
    """If None, the dataset's own train, validation and test splits are used."""

    size = None

    @classmethod
    def parse(cls, spec: str) -> HubDataset:
        """
        >>> HubDataset.parse("hf:deepmind/pg19:test")
        HubDataset(name='deepmind/pg19', config=None, split='test')
        """
        address, _, split = spec.removeprefix(HUB_PREFIX).partition(":")
        name, _, config = address.partition("@")
        if not name:
            raise DataError(f"a dataset must be {HUB_PREFIX}OWNER/NAME[@CONFIG][:SPLIT], got {spec!r}")
        return cls(name, config or None, split or None)

    def pieces(self) -> Iterator[Piece]:
        stream = self._ask("load_dataset", split=self.split or "train", streaming=True)
        read = 0
        for record in self._records(stream):
            text = record.get("text")
            if not isinstance(text, str):
                raise DataError(f"{self}: records must have a string 'text', got the fields {sorted(record)}")
            if not text.strip():
                continue
            for part, ends_document in cut(text):
                read += len(part)
                yield Piece(part, ends_document, read)

    def own_splits(self) -> list[str]:
        return list(self._ask("get_dataset_split_names"))

    def identity(self) -> list[Any]:
        return [str(self)]

    def __str__(self) -> str:
        return HUB_PREFIX + self.name + (f"@{self.config}" if self.config else "") + f":{self.split or 'train'}"

    def _ask(self, function: str, **options: Any) -> Any:
        try:
            datasets = importlib.import_module("datasets")
        except ModuleNotFoundError:
            raise DataError(
                f"{self}: reading Hugging Face datasets needs the package datasets: pip install datasets"
            ) from None
        return self._guarded(lambda: getattr(datasets, function)(self.name, self.config, **options))

    def _records(self, stream: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        records = iter(stream)
        while (record := self._guarded(lambda: next(records, None))) is not None:
            yield record

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Turn any failure of `datasets`, which has no common exception, into one line."""
        try:
            return call()
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise DataError(f"{self}: cannot be read: {type(error).__name__}: {reason}") from None


@dataclass(frozen=True)
class Corpus:
    """Text in a fixed order.

    >>> corpus = open_corpus([Path(__file__)])
    >>> next(corpus.documents())[3:24]
    'Where text comes from'
    """

    parts: tuple[TextFile | HubDataset, ...]
    description: str
    documents_between: tuple[int, int] | None = None
    """If given, only the documents from the first number up to the second, counted from 0 over `parts`."""

    @property
    def size(self) -> int | None:
        """Bytes as stored, or None if a part does not know its size."""
        sizes = [part.size for part in self.parts]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def pieces(self) -> Iterator[Piece]:
        """The documents in pieces; `Piece.read` accumulates over the whole corpus."""
        start, stop = self.documents_between or (0, None)
        before = number = 0
        for part in self.parts:
            piece = None
            for piece in part.pieces():
                if number == stop:
                    return
                if number >= start:
                    yield piece._replace(read=before + piece.read)
                number += piece.ends_document
            before += part.size if part.size is not None else (piece.read if piece else 0)
        if stop is not None and number < stop:
            raise DataError(
                f"{self.description}: changed since its documents were counted; remove the parts and begin again"
            )

    def excerpt(self, counts: Sequence[int], start: int, stop: int) -> Corpus:
        """The documents from number `start` up to `stop`; files without any of them are not opened.

        Args:
            counts: The number of documents of each part.
        """
        ends = list(accumulate(counts))
        kept = [n for n, end in enumerate(ends) if end - counts[n] < stop and end > start and start < stop]
        before = ends[kept[0]] - counts[kept[0]] if kept else start
        parts = tuple(self.parts[n] for n in kept)
        return Corpus(parts, self.description, (start - before, stop - before))

    def documents(self) -> Iterator[str]:
        """The whole documents, one at a time."""
        parts: list[str] = []
        for piece in self.pieces():
            parts.append(piece.text)
            if piece.ends_document:
                yield "".join(parts)
                parts = []

    def identity(self) -> list[Any]:
        """Changes whenever a part does: names, sizes and modification times, not the text itself."""
        return [part.identity() for part in self.parts]


def open_corpus(sources: Sequence[str | Path]) -> Corpus:
    """The text of files, folders and `hf:OWNER/NAME[@CONFIG][:SPLIT]`, in the order given.

    A file that is named itself is read whatever its extension. Folders are searched recursively for visible files that
    end in .txt, .jsonl, .gz, .xz or .zst. What is in several of them is an error.
    """
    parts: list[TextFile | HubDataset] = []
    names = []
    for source in sources:
        if not str(source).strip():  # a variable of the shell that was not set would be the current folder
            raise DataError(f"sources must be files, folders or hf:OWNER/NAME, got {source!r}")
        if str(source).startswith(HUB_PREFIX):
            parts.append(HubDataset.parse(str(source)))
            names.append(str(parts[-1]))
        else:
            files = _files(Path(source))
            parts.extend(files)
            count = f"{len(files)} file{'s' if len(files) > 1 else ''}"
            names.append(f"{source} ({count})" if Path(source).is_dir() else str(source))
    if not parts:
        raise DataError("sources must be files, folders or hf:OWNER/NAME, got none")
    _check_once(parts)
    more = len(names) - _NAMED_AT_MOST
    return Corpus(tuple(parts), ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else ""))


def _check_once(parts: Sequence[TextFile | HubDataset]) -> None:
    """Raise where a part is given twice: a split would put its documents into training and validation."""
    seen = set()
    for part in parts:
        here, known = (part.path, part.path.resolve()) if isinstance(part, TextFile) else (str(part), str(part))
        if known in seen:
            raise _twice(here)
        seen.add(known)


def _twice(what: str | Path) -> DataError:
    return DataError(f"{what}: twice in the sources; give it once")


def _files(source: Path) -> list[TextFile]:
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.is_file():
        return [TextFile.at(source, source.name)]
    if not source.is_dir():
        raise DataError(f"{source}: neither a file nor a folder")
    found = [path for path in _walk(source, skip=frozenset()) if path.suffix.lower() in LAYOUTS + COMPRESSIONS]
    if not found:
        raise DataError(f"{source}: holds no text files; names must end in {', '.join(LAYOUTS + COMPRESSIONS)}")
    return [TextFile.at(path, path.relative_to(source).as_posix()) for path in found]


def _walk(root: Path, skip: frozenset[str]) -> list[Path]:
    """Visible files under `root`, sorted by relative path, the same order on every machine."""
    found, seen = [], set()
    for folder, subfolders, names in os.walk(root, onerror=_unreadable, followlinks=True):
        if (known := os.path.realpath(folder)) in seen:  # links may lead in a circle
            raise _twice(folder)
        seen.add(known)
        subfolders[:] = [name for name in subfolders if name not in skip and not name.startswith(".")]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(root).as_posix())


def _unreadable(error: OSError) -> None:
    """Raise where a folder cannot be read: its text would be missing."""
    raise error


# Tests are left out: many systems ship the library without them, and elsewhere they are two thirds of the text.
_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})


def standard_library_corpus() -> dict[str, Corpus]:
    """The source text of the running Python's own standard library: 12 MB in 700 files for Python 3.11.

    Split by file, 90 / 5 / 5 percent, by a hash of the relative path, so a file stays in its split in later Pythons.

    >>> sorted(standard_library_corpus())
    ['test', 'train', 'validation']
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in _walk(root, _NOT_LIBRARY) if path.suffix == ".py" and _is_text(path)]
    parts: dict[str, list[TextFile]] = {split: [] for split in SPLITS}
    for path in files:
        name = path.relative_to(root).as_posix()
        parts[_side_of(name)].append(TextFile.at(path, name))
    if not all(parts.values()):
        raise DataError(
            f"{root}: this Python has too little of its standard library as .py files; give text of your own"
        )
    title = f"{len(files)} files of the standard library of Python {platform.python_version()}"
    return {split: Corpus(tuple(part), title) for split, part in parts.items()}


def _is_text(path: Path) -> bool:
    try:
        return "\0" not in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def _side_of(name: str) -> str:
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    return "train" if share < 0.9 else "validation" if share < 0.95 else "test"
