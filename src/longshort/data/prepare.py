"""Turns text into a folder of token files: DIR/{train,validation,test}.tokens with headers, and DIR/tokenizer.json.

Everything is written under a temporary name and renamed at the end, the header of train last: a folder with a
train.json is complete. One process at a time works on a folder; a second one waits and finds the work done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshort.data.corpus import SPLITS, Corpus, HubDataset, open_corpus
from longshort.data.errors import DataError
from longshort.data.parallel import encode_in_order
from longshort.data.split import ByCorpus, Division, divide
from longshort.data.tokenizer import TOKENIZER_FILE, BPETokenizer, ByteTokenizer, Tokenizer, load_tokenizer
from longshort.data.tokens import FORMAT, VERSION, TokenFile, TokenWriter, header_path
from longshort.files import parse_json, write_json

BPE_TRAINING_CHARACTERS = 1 << 28
"""A vocabulary is learned from the beginning of the training text: more text changes it little and takes long."""

MOST_WORKERS = 1024
PrepareProgress = Callable[[str, int, int | None], None]
"""Called with the stage, the bytes done and the total bytes (None if unknown)."""

Sources = str | Path | Sequence[str | Path]

_OURS = {TOKENIZER_FILE} | {f"{split}{ending}" for split in SPLITS for ending in (".tokens", ".json")}


@dataclass(frozen=True)
class PreparedData:
    """A prepared data folder."""

    folder: Path
    tokenizer: Tokenizer
    splits: dict[str, TokenFile]
    source: str
    reused: bool
    """Whether it already existed, made from the same sources with the same settings."""


def prepare(
    sources: Sources | Mapping[str, Corpus],
    out: Path | str,
    *,
    tokenizer: Path | str | None = None,
    vocab_size: int | None = None,
    split: tuple[float, float, float] = (0.9, 0.05, 0.05),
    validation: Sources | None = None,
    test: Sources | None = None,
    workers: int | None = None,
    progress: PrepareProgress | None = None,
    seed: int = 0,
    force: bool = False,
) -> PreparedData:
    """Turn text into token files. The same input gives the same bytes, whatever the number of workers.

    Args:
        sources: Files, folders or `hf:OWNER/NAME`; or a corpus for each split.
        tokenizer: 'bytes' (the default), or a tokenizer.json or a folder that holds one.
        vocab_size: Instead of a tokenizer: learn a byte-level BPE of this size from the training text.
        split: Shares of train, validation and test. Ignored if `validation` or `test` is given, since all of `sources`
            is then for training, and for a single Hugging Face dataset that has such splits of its own.
        workers: Processes that tokenize; by default one for bytes, which are cheap, and one per core for BPE.
        force: Replace what is in `out`, even if it was made from something else.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "book.txt").write_text("It was a dark and stormy night. " * 10)
    ...     prepared = prepare(Path(folder, "book.txt"), Path(folder, "tokens"))
    ...     {name: len(tokens) for name, tokens in prepared.splits.items()}
    {'train': 289, 'validation': 17, 'test': 17}
    """
    if tokenizer is not None and vocab_size is not None:
        raise DataError(f"tokenizer and vocab_size must not both be given, got {tokenizer} and {vocab_size}")
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise DataError(f"workers must be from 1 to {MOST_WORKERS:,}, got {workers}")
    job = _Job(
        corpora=_corpora(sources, validation, test),
        out=Path(out),
        given=None if vocab_size is not None else load_tokenizer(tokenizer or "bytes"),
        vocab_size=vocab_size,
        split=split,
        seed=seed,
        workers=workers,
        report=progress or (lambda stage, done, total: None),
    )
    try:
        return job.run(force)
    except OSError as error:
        raise DataError(f"{error.filename or out}: {error.strerror or error}") from None


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What `prepare` was asked to do, checked."""

    corpora: Mapping[str, Corpus]
    """The text of each split, or only of 'train' if that is to be divided."""
    out: Path
    given: Tokenizer | None
    vocab_size: int | None
    split: tuple[float, float, float]
    seed: int
    workers: int | None
    report: PrepareProgress

    @property
    def source(self) -> str:
        return "; ".join(dict.fromkeys(corpus.description for corpus in self.corpora.values()))

    @property
    def size(self) -> int | None:
        sizes = [corpus.size for corpus in self.corpora.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def recipe(self) -> str:
        """A hash of everything that determines the output."""
        ingredients = {
            "version": VERSION,
            "sources": {name: corpus.identity() for name, corpus in self.corpora.items()},
            "split": [*self.split, self.seed] if len(self.corpora) == 1 else None,
            "tokenizer": self.given.fingerprint if self.given else f"bpe of {self.vocab_size}",
        }
        return hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()

    def run(self, force: bool) -> PreparedData:
        with _sole_use_of(self.out):
            if not force:
                if there := _whole(self.out, self.recipe):
                    return PreparedData(self.out, load_tokenizer(self.out), there, self.source, reused=True)
                _refuse_other_content(self.out, self.recipe)
            for leftover in (entry for entry in self.out.iterdir() if _temporary(entry.name)):
                leftover.unlink()
            self.report("reading", 0, self.size)
            one = len(self.corpora) == 1
            division = divide(self.corpora["train"], self.split, self.seed) if one else ByCorpus(self.corpora)
            tokenizer = self.given or self.learn(division)
            return PreparedData(self.out, tokenizer, self.write(division, tokenizer), self.source, reused=False)

    def learn(self, division: Division) -> Tokenizer:
        def training_text() -> Iterator[str]:
            characters = 0
            for piece in division.pieces():
                if characters >= BPE_TRAINING_CHARACTERS:
                    return
                if piece.split == "train":
                    characters += len(piece.text)
                    self.report("learning the vocabulary", piece.read, self.size)
                    yield piece.text

        return BPETokenizer.train(training_text(), self.vocab_size or 0)

    def write(self, division: Division, tokenizer: Tokenizer) -> dict[str, TokenFile]:
        workers = self.workers or (1 if isinstance(tokenizer, ByteTokenizer) else os.cpu_count() or 1)
        notes = {"source": self.source, "recipe": self.recipe}
        with contextlib.ExitStack() as stack:
            writers = {
                split: stack.enter_context(TokenWriter(_file(self.out, split), tokenizer, **notes)) for split in SPLITS
            }
            # Closed here rather than by the garbage collector, so that an error leaves no processes behind.
            encoded = stack.enter_context(contextlib.closing(encode_in_order(division.pieces(), tokenizer, workers)))
            for chunk in encoded:
                writers[chunk.split].append(chunk.ids)
                self.report("tokenizing", chunk.read, self.size)
            if not writers["train"].count:
                raise DataError(f"{self.source}: no text for training; give files that hold more than blanks")
            # Train's tokens first and its header last: in between, the folder has no train header, so it is incomplete.
            for split in SPLITS:
                writers[split].install()
            write_json(self.out / TOKENIZER_FILE, tokenizer.to_dict())
            published = {split: writers[split].publish() for split in reversed(SPLITS)}
        return {split: published[split] for split in SPLITS}


def _corpora(
    sources: Sources | Mapping[str, Corpus], validation: Sources | None, test: Sources | None
) -> dict[str, Corpus]:
    """The text of each split, or only {'train': ...} if there is one text to divide."""
    if isinstance(sources, Mapping):
        if validation is not None or test is not None:
            raise DataError(
                "validation and test must come with sources for training, got a corpus for each split instead"
            )
        return {name: sources[name] for name in SPLITS if name in sources}
    corpora = {"train": open_corpus(_as_list(sources))}
    for name, other in (("validation", validation), ("test", test)):
        if other is not None:
            corpora[name] = open_corpus(_as_list(other))
    match corpora["train"].parts:
        case [HubDataset(split=None) as dataset] if len(corpora) == 1:
            address = str(dataset).removesuffix(":train")
            own = dataset.own_splits()
            if "train" in own and len(set(own) & set(SPLITS)) > 1:
                return {name: open_corpus([f"{address}:{name}"]) for name in SPLITS if name in own}
    return corpora


def _as_list(sources: Sources) -> list[str | Path]:
    return [sources] if isinstance(sources, str | Path) else list(sources)


def _file(out: Path, split: str) -> Path:
    return out / f"{split}.tokens"


def _temporary(name: str) -> bool:
    """Whether it is a temporary file that an interrupted call left."""
    return name.endswith(".tmp") and any(name.startswith(f".{ours}.") for ours in _OURS)


def _whole(out: Path, recipe: str) -> dict[str, TokenFile] | None:
    """The token files of an earlier call with the same recipe; None if there are none or one is damaged."""
    try:
        files = {split: TokenFile.open(_file(out, split), verify=True) for split in SPLITS}
        train = files["train"]
        load_tokenizer(out, fingerprint=train.fingerprint, checksum=train.tokenizer_checksum)
    except DataError:
        return None
    return files if all(file.header["recipe"] == recipe for file in files.values()) else None


def _refuse_other_content(out: Path, recipe: str) -> None:
    names = {entry.name for entry in out.iterdir() if not _temporary(entry.name)}
    # Token files are renamed before all else, so that the leftovers of an interrupted call always include one.
    if names and ("train.tokens" not in names or not names <= _OURS):
        raise DataError(
            f"{out}: holds other files ({min(names - _OURS or names)}); give an empty or new folder, or --force"
        )
    for header in (header_path(_file(out, split)) for split in SPLITS):
        if header.is_file() and not _made_by(header, recipe):
            raise DataError(
                f"{out}: holds data from other sources or settings; give another --out, or --force to replace it"
            )


def _made_by(header: Path, recipe: str) -> bool:
    try:
        found: Any = parse_json(header.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT and found.get("recipe") == recipe


@contextlib.contextmanager
def _sole_use_of(folder: Path) -> Iterator[None]:
    """Lock the folder itself; the system releases the lock however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a folder; of two calls at once, one may then fail.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
