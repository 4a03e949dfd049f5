"""Rebuilds the books that the experiments train on from their public list, `books.tsv`, and checks every hash.

A line of the list names a public file with a transcription of Project Gutenberg, the lines of it that are the book
(without header, footer and transcribers' notes), and the sha256 of the file and of the book. The books themselves are
not in the repository.
"""

from __future__ import annotations

import csv
import hashlib
import re
import unicodedata
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated

import typer

from longshort.cli import one_line_errors
from longshort.files import alone_in, write_atomically

LIST = Path(__file__).parent / "books.tsv"
SEPARATOR = b"<|endoftext|>\n"
"""On a line of its own, as `longshort data` reads it."""
SPLITS = {"train": ("train", "train-mini"), "train-mini": ("train-mini",), "validation": ("validation",)}
"""The files that are written, and the splits of the list whose books each holds."""
SOURCES = "sources"
TIMEOUT = 60.0
_QUOTES = dict.fromkeys("\u2018\u2019\u201a", "'") | dict.fromkeys("\u201c\u201d", '"')
_DASHES = {"\u2013": "-", "\u2014": "--", "\u2015": "--"}
_OTHERS = {"\u2026": "...", "\xa0": " "}
_DROPPED = dict.fromkeys(["\xad", "\ufeff", *(chr(code) for code in range(32) if chr(code) != "\n")], "")
_CHARACTERS = str.maketrans(_QUOTES | _DASHES | _OTHERS | _DROPPED)
_EMPTY_PICTURE = re.compile(r"\s*\[Illustration:? ?\]")


@dataclass(frozen=True, kw_only=True)
class Book:
    """A line of the list."""

    split: str
    title: str
    author: str
    url: str
    sha256: str
    """Of the file at `url`."""
    lines: str
    """Which lines of the cleaned file are the book, as in "25-3057 3060-3073"."""
    book_sha256: str


class CorpusError(ValueError):
    """A book that cannot be had as the list describes it."""


def read_list() -> list[Book]:
    with LIST.open(encoding="utf-8", newline="") as file:
        return [Book(**line) for line in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def cleaned(source: bytes) -> list[str]:
    """The lines of a file, with plain quotes and dashes, without empty pictures, and with one blank line at a time.

    >>> cleaned(b"\\xe2\\x80\\x9cA\\xe2\\x80\\x9d  \\r\\n\\r\\n[Illustration]\\r\\n\\r\\nB")
    ['"A"', '', 'B']
    """
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = source.decode("cp1252", "replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4).translate(_CHARACTERS)
    lines = [line.rstrip() for line in unicodedata.normalize("NFC", text).split("\n")]
    return _single_blanks("" if _EMPTY_PICTURE.fullmatch(line) else line for line in lines).split("\n")


def _single_blanks(lines: Iterable[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def book_of(source: bytes, lines: str) -> bytes:
    """These lines of the cleaned file.

    >>> book_of(b"Header\\n\\n  Title\\nText\\nFooter\\n", "3-4")
    b'Title\\nText\\n'
    """
    every = cleaned(source)
    ranges = (part.split("-") for part in lines.split())
    kept = [line for first, last in ranges for line in every[int(first) - 1 : int(last)]]
    return (_single_blanks(kept).strip() + "\n").encode()


def fetch(book: Book, folder: Path, *, mirror: str | None = None) -> Path:
    """The file of a book, from the folder if it is there and whole, else from its address; written only if its hash is
    that of the list.
    """
    path = folder / f"{book.sha256}.txt"
    if path.is_file() and _sha256(path.read_bytes()) == book.sha256:
        return path
    url = book.url if mirror is None else mirror.rstrip("/") + urllib.parse.urlsplit(book.url).path
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise CorpusError(f"{url}: cannot be read: {error}") from error
    if (found := _sha256(content)) != book.sha256:
        raise CorpusError(
            f"{url}: sha256 must be {book.sha256}, got {found} ({len(content):,} bytes): the file has changed or came "
            "damaged"
        )
    return write_atomically(path, content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def build(
    out: Path,
    books: Sequence[Book],
    *,
    splits: Sequence[str] = tuple(SPLITS),
    mirror: str | None = None,
    parallel: int = 8,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Fetch what is missing, then write a file per split. A second call fetches only what the first did not."""
    if unknown := [split for split in splits if split not in SPLITS]:
        raise CorpusError(f"--splits must be among {', '.join(SPLITS)}, got {', '.join(unknown)}")
    if mirror is not None and "://" not in mirror:
        raise CorpusError(f"--mirror must be an address, as in {Path(mirror).resolve().as_uri()}, got {mirror!r}")
    needed = [book for book in books if any(book.split in SPLITS[split] for split in splits)]
    with alone_in(out):
        sources = _fetch_all(needed, out / SOURCES, mirror=mirror, parallel=parallel, say=say)
        return [
            write_atomically(
                out / f"books-{split}.txt",
                SEPARATOR.join(_checked(book, sources[book]) for book in needed if book.split in SPLITS[split]),
            )
            for split in splits
        ]


def _fetch_all(
    books: Sequence[Book], folder: Path, *, mirror: str | None, parallel: int, say: Callable[[str], None]
) -> dict[Book, Path]:
    """Every file, or an error that names the first of those that could not be had; the others are kept."""
    found: dict[Book, Path] = {}
    failed: list[CorpusError] = []
    with ThreadPoolExecutor(parallel) as pool:
        tasks = [(book, pool.submit(fetch, book, folder, mirror=mirror)) for book in books]
        try:
            for done, (book, task) in enumerate(tasks, 1):
                try:
                    found[book] = task.result()
                except CorpusError as error:
                    failed.append(error)
                if done % 50 == 0 or done == len(tasks):
                    say(f"{done - len(failed)} of {len(tasks)} files")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise CorpusError(
            f"{len(failed)} of {len(books)} files are missing; run the same command again to resume. The first: "
            f"{failed[0]}"
        )
    return found


def _checked(book: Book, source: Path) -> bytes:
    content = book_of(source.read_bytes(), book.lines)
    if (found := _sha256(content)) != book.book_sha256:
        raise CorpusError(
            f"{book.title}: sha256 must be {book.book_sha256}, got {found}: its file is right, so the list and "
            "corpus.py do not belong together"
        )
    return content


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
@one_line_errors()
def main(
    out: Annotated[Path, typer.Option(help="Folder to write to; downloads are kept in its folder `sources`.")],
    splits: Annotated[str, typer.Option(help="Which files to build.")] = ",".join(SPLITS),
    mirror: Annotated[str | None, typer.Option(help="Read from here instead, as in file:///srv/books.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Downloads at a time.")] = 8,
) -> None:
    """Rebuild the books corpus: 508 files, 223 MB. Run the same command again to resume.

    Example: python -m experiments.corpus --out data/text --splits train,validation
    """
    chosen = tuple(split.strip() for split in splits.split(","))
    for path in build(out, read_list(), splits=chosen, mirror=mirror, parallel=parallel, say=typer.echo):
        typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    app(prog_name="python -m experiments.corpus")
