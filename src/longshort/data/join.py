"""Joins the parts of a corpus into one prepared folder, byte for byte the one that a single call makes.

DIR/manifest.json lists the parts that were joined, with their checksums. The parts are not needed afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.data.corpus import SPLITS
from longshort.data.errors import DataError
from longshort.data.folder import (
    PARTS,
    PreparedData,
    publish,
    refuse_other_content,
    remove_leftovers,
    sole_use_of,
    token_path,
    token_writers,
    whole,
)
from longshort.data.parts import FORMAT, VERSION, Part, Shared
from longshort.data.prepare import PrepareProgress
from longshort.data.tokenizer import tokenizer_checksum
from longshort.data.tokens import TokenFile

_CHUNK = 1 << 24
"""Tokens copied at a time."""
_NAMED = 8
"""The most parts that an error lists."""

Found = dict[Part, dict[str, TokenFile]]


def join(out: Path | str, count: int, *, force: bool = False, progress: PrepareProgress | None = None) -> PreparedData:
    """Join the `count` parts that `prepare(..., out, part=...)` made. A missing, foreign or damaged part is an error.

    Args:
        force: Replace what is in `out` beside the parts.

    >>> import tempfile
    >>> from longshort.data.prepare import prepare
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "book.txt").write_text("It was a dark and stormy night. " * 10)
    ...     for part in ("1/2", "2/2"):
    ...         _ = prepare(Path(folder, "book.txt"), Path(folder, "tokens"), part=part)
    ...     joined = join(Path(folder, "tokens"), 2)
    ...     {name: len(tokens) for name, tokens in joined.splits.items()}
    {'train': 289, 'validation': 17, 'test': 17}
    """
    out, parts, report = Path(out), Part.all(count), progress or (lambda stage, done, total: None)
    shared = Shared.read(out)
    if shared is None:
        raise DataError(f"{out}: holds no {PARTS}; make them: longshort data SOURCES --out {out} --part 1/{count}")
    try:
        with sole_use_of(out):
            if not force:
                if there := whole(out, shared.recipe):
                    return PreparedData(out, shared.tokenizer, there, shared.source, reused=True)
                refuse_other_content(out, shared.recipe, parts=True)
            remove_leftovers(out)
            files = _join(out, _found(out, parts, shared), shared, report)
            return PreparedData(out, shared.tokenizer, files, shared.source, reused=False)
    except OSError as error:
        raise DataError(f"{error.filename or out}: {error.strerror or error}") from None


def _found(out: Path, parts: Sequence[Part], shared: Shared) -> Found:
    """The files of every part; an error that names the parts that are missing, unfinished or not of this whole."""
    found: Found = {}
    missing: list[Part] = []
    checksum = tokenizer_checksum(shared.tokenizer.to_dict())
    for part in parts:
        folder = part.folder(out)
        # Train's header is written last: without it the part is unfinished.
        if not (folder / "train.json").is_file():
            missing.append(part)
            continue
        found[part] = {split: TokenFile.open(token_path(folder, split)) for split in SPLITS}
        for file in found[part].values():
            if file.header["recipe"] != part.recipe(shared.recipe) or file.tokenizer_checksum != checksum:
                raise DataError(
                    f"{file.path}: not part {part} of these sources and settings ({shared.source}); prepare it again: "
                    f"longshort data ... --part {part} --force"
                )
    if missing:
        names = ", ".join(map(str, missing[:_NAMED])) + (
            f" and {more} more" if (more := len(missing) - _NAMED) > 0 else ""
        )
        raise DataError(f"{out / PARTS}: missing or unfinished: {names}; run longshort data ... --part {missing[0]}")
    return found


def _join(out: Path, found: Found, shared: Shared, report: PrepareProgress) -> dict[str, TokenFile]:
    total = sum(file.tokens.nbytes for files in found.values() for file in files.values())
    done = 0
    with token_writers(out, shared.tokenizer, source=shared.source, recipe=shared.recipe) as writers:
        for files in found.values():
            for split, file in files.items():
                for chunk in _verified(file):
                    writers[split].append(chunk)
                    done += chunk.nbytes
                    report("joining", done, total)
        if not writers["train"].count:
            raise DataError(f"{shared.source}: no text for training; give files that hold more than blanks")
        return publish(out, writers, shared.tokenizer, _manifest(found, shared))


def _verified(file: TokenFile) -> Iterator[NDArray[Any]]:
    """The tokens in chunks; an error at the end if they are not those that the header describes."""
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1) as beside:  # beside the writer, which computes the checksum of the whole
        for start in range(0, len(file), _CHUNK):
            chunk = np.asarray(file.tokens[start : start + _CHUNK])
            updated = beside.submit(digest.update, chunk.data)
            yield chunk
            updated.result()
    if f"sha256:{digest.hexdigest()}" != file.header["checksum"]:
        raise DataError(f"{file.path}: damaged: its checksum differs; prepare this part again with --force")


def _manifest(found: Found, shared: Shared) -> dict[str, Any]:
    kept = ("count", "documents", "checksum")
    parts = [
        {"part": str(part)} | {split: {key: file.header[key] for key in kept} for split, file in files.items()}
        for part, files in found.items()
    ]
    return {"format": FORMAT, "version": VERSION, "recipe": shared.recipe, "parts": parts}
