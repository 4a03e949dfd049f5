"""Turns text into a folder of token files, or one part of it into a part of such a folder.

`folder` says what such a folder holds, `join` makes one of all its parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longshort.data.corpus import SPLITS, Corpus, HubDataset, TextFile, open_corpus
from longshort.data.errors import DataError
from longshort.data.folder import (
    PARTS,
    PreparedData,
    publish,
    refuse_other_content,
    remove_leftovers,
    sole_use_of,
    token_writers,
    whole,
)
from longshort.data.parallel import count_documents, encode_in_order
from longshort.data.parts import Part, Shared
from longshort.data.split import ByCorpus, Division, divide, excerpt, size_of
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer, Tokenizer, load_tokenizer, tokenizer_checksum
from longshort.data.tokens import VERSION, TokenFile
from longshort.files import alone_in

BPE_TRAINING_CHARACTERS = 1 << 28
"""A vocabulary is learned from the beginning of the training text: more text changes it little and takes long."""

MOST_WORKERS = 1024
PrepareProgress = Callable[[str, int, int | None], None]
"""Called with the stage, the bytes done and the total bytes (None if unknown)."""

Sources = str | Path | Sequence[str | Path]


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
    part: Part | str | None = None,
) -> PreparedData:
    """Turn text into token files. The same input gives the same bytes, whatever the number of workers or parts.

    Args:
        sources: Files, folders or `hf:OWNER/NAME`; or a corpus for each split.
        tokenizer: 'bytes' (the default), or a tokenizer.json or a folder that holds one.
        vocab_size: Instead of a tokenizer: learn a byte-level BPE of this size from the training text.
        split: Shares of train, validation and test. Ignored if `validation` or `test` is given, since all of `sources`
            is then for training, and for a single Hugging Face dataset that has such splits of its own.
        workers: Processes that tokenize; by default one for bytes, which are cheap, and one per core for BPE.
        force: Replace what is in `out`, even if it was made from something else.
        part: '3/8' prepares the third of eight parts, in a folder of its own under `out`; `join` joins them.

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
        given=None if vocab_size is not None else load_tokenizer("bytes" if tokenizer is None else tokenizer),
        vocab_size=vocab_size,
        split=split,
        seed=seed,
        workers=workers,
        report=progress or (lambda stage, done, total: None),
    )
    chosen = Part.parse(part) if isinstance(part, str) else part
    try:
        return job.run(force) if chosen is None else job.of_part(chosen, force).run(force)
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
    part: tuple[Part, Shared] | None = None
    """If given, only this part is prepared, with what all parts share."""

    @property
    def source(self) -> str:
        return "; ".join(dict.fromkeys(corpus.description for corpus in self.corpora.values()))

    @property
    def size(self) -> int | None:
        return size_of(ByCorpus(self.corpora))

    @property
    def recipe(self) -> str:
        """A hash of everything that determines the output."""
        if self.part:
            part, shared = self.part
            return part.recipe(shared.recipe)
        ingredients = {
            "version": VERSION,
            "sources": {name: corpus.identity() for name, corpus in self.corpora.items()},
            "split": [*self.split, self.seed] if len(self.corpora) == 1 else None,
            "tokenizer": _identity_of(self.given) if self.given else f"bpe of {self.vocab_size}",
        }
        return hashlib.sha256(json.dumps(ingredients).encode()).hexdigest()

    def of_part(self, part: Part, force: bool) -> _Job:
        """The job of one part. The first part to ask makes what all of them share; the others wait for it."""
        folder = self.out / PARTS
        self.out.mkdir(parents=True, exist_ok=True)
        if not force:
            refuse_other_content(self.out, self.recipe, parts=True)
        self.report("waiting for another part", 0, None)
        with alone_in(folder, wait=True):
            shared = Shared.read(self.out)
            if shared and shared.recipe != self.recipe and not force:
                raise DataError(
                    f"{folder}: holds parts of other sources or settings; give another --out, or --force to replace "
                    "them one by one"
                )
            if shared is None or shared.recipe != self.recipe:
                shared = self.share()
                shared.write(self.out)
        return replace(self, out=part.folder(self.out), given=shared.tokenizer, part=(part, shared))

    def share(self) -> Shared:
        division = self.division()
        tokenizer = self.given or self.learn(division)
        counts = {name: list(self.count(corpus, tokenizer)) for name, corpus in self.corpora.items()}
        return Shared(self.recipe, self.source, tokenizer, counts)

    def count(self, corpus: Corpus, tokenizer: Tokenizer) -> Iterator[int]:
        done = 0
        for part, count in zip(corpus.parts, count_documents(corpus.parts, self.processes(tokenizer)), strict=True):
            done += part.size or 0
            self.report("counting documents", done, corpus.size)
            yield count

    def run(self, force: bool) -> PreparedData:
        with sole_use_of(self.out):
            if not force:
                if there := whole(self.out, self.recipe):
                    return PreparedData(self.out, load_tokenizer(self.out), there, self.source, reused=True)
                refuse_other_content(self.out, self.recipe)
            remove_leftovers(self.out)
            self.report("reading", 0, self.size)
            division = self.division()
            tokenizer = self.given or self.learn(division)
            return PreparedData(self.out, tokenizer, self.write(division, tokenizer), self.source, reused=False)

    def division(self) -> Division:
        one = len(self.corpora) == 1
        division = divide(self.corpora["train"], self.split, self.seed) if one else ByCorpus(self.corpora)
        if self.part is None:
            return division
        part, shared = self.part
        return excerpt(division, shared.documents, *part.documents(shared.total))

    def processes(self, tokenizer: Tokenizer) -> int:
        return self.workers or (1 if isinstance(tokenizer, ByteTokenizer) else os.cpu_count() or 1)

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
        size = size_of(division)
        encoding = encode_in_order(division.pieces(), tokenizer, self.processes(tokenizer))
        with (
            token_writers(self.out, tokenizer, source=self.source, recipe=self.recipe) as writers,
            # Closed here rather than by the garbage collector, so that an error leaves no processes behind.
            contextlib.closing(encoding) as encoded,
        ):
            for chunk in encoded:
                writers[chunk.split].append(chunk.ids)
                self.report("tokenizing", chunk.read, size)
            if not writers["train"].count and self.part is None:
                raise DataError(f"{self.source}: no text for training; give files that hold more than blanks")
            return publish(self.out, writers, tokenizer)


def _identity_of(tokenizer: Tokenizer) -> str:
    """All that decides the tokens of a text: merges and normalization too, which the fingerprint does not cover. What
    goes before a text does not.
    """
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer.fingerprint
    return tokenizer_checksum(tokenizer.to_dict() | {"post_processor": None})


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
            _check_held_out(corpora["train"], name, corpora[name])
    match corpora["train"].parts:
        case [HubDataset(split=None) as dataset] if len(corpora) == 1:
            address = str(dataset).removesuffix(":train")
            own = dataset.own_splits()
            if "train" in own and len(set(own) & set(SPLITS)) > 1:
                return {name: open_corpus([f"{address}:{name}"]) for name in SPLITS if name in own}
    return corpora


def _check_held_out(train: Corpus, name: str, other: Corpus) -> None:
    trained = {part.path.resolve() for part in train.parts if isinstance(part, TextFile)}
    for part in other.parts:
        if isinstance(part, TextFile) and part.path.resolve() in trained:
            raise DataError(f"{part.path}: a source of training and of {name}; move it out of the sources of training")


def _as_list(sources: Sources) -> list[str | Path]:
    return [sources] if isinstance(sources, str | Path) else list(sources)
