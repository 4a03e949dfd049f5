"""Reads one file of text as documents, in pieces of bounded size.

It knows compression (.gz, .xz, .zst), encoding (UTF-8) and layout (plain text or JSON lines). `corpus` decides which
files to read.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from longshort.data.errors import DataError
from longshort.files import parse_json

COMPRESSIONS = (".gz", ".xz", ".zst")
LAYOUTS = (".txt", ".jsonl")
SEPARATOR = "<|endoftext|>"
LONGEST_PIECE = 1 << 18
"""Characters per piece. Long documents come in pieces, so that memory does not grow with the longest document."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Piece(NamedTuple):
    """A stretch of one document."""

    text: str
    ends_document: bool
    read: int
    """Bytes of the source (as stored, compressed or not) consumed so far."""


def read_pieces(path: Path) -> Iterator[Piece]:
    """The documents of a file, in pieces. Every failure is a `DataError` that names the file.

    A file whose name, without the compression's extension, ends in .jsonl or .json is JSON lines: one object with a
    string `text` per line. Any other is plain text, in which a line `<|endoftext|>` or the file's end ends a document.
    """
    layout = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    documents = _json_lines if layout.suffix.lower() in (".jsonl", ".json") else _plain_text
    with open_text(path) as (lines, raw):
        for text, ends_document in documents(path, lines):
            yield Piece(text, ends_document, raw.tell())


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[tuple[IO[str], IO[bytes]]]:
    """The lines of a text file, decompressed if necessary, and the raw file, whose position shows the progress.

    Every failure while reading is a `DataError` that names the file.
    """
    try:
        with path.open("rb") as raw, contextlib.closing(_decompressed(path, raw)) as unpacked:
            watched = _Watched(path, unpacked)
            with io.TextIOWrapper(io.BufferedReader(watched, 1 << 17), encoding="utf-8-sig", newline="\n") as lines:
                yield lines, raw
    except UnicodeDecodeError as error:
        offset = watched.count - len(error.object) + error.start
        raise DataError(
            f"{path}: not UTF-8 text: byte 0x{error.object[error.start]:02x} at offset {offset}; convert it: "
            "iconv -f ENCODING -t UTF-8"
        ) from None
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise DataError(
            f"{path}: truncated, damaged or not a {path.suffix} archive ({error}); make or download it again"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def cut(text: str) -> Iterator[tuple[str, bool]]:
    """A whole document as pieces: (text, whether it is the last). Cuts at line ends if there are any.

    >>> list(cut("one line"))
    [('one line', True)]
    """
    start = 0
    while len(text) - start > LONGEST_PIECE:
        end = text.rfind("\n", start, start + LONGEST_PIECE) + 1 or start + LONGEST_PIECE
        yield text[start:end], False
        start = end
    yield text[start:], True


def _plain_text(path: Path, lines: IO[str]) -> Iterator[tuple[str, bool]]:
    pending: list[str] = []
    size = 0
    begun = False  # whether a piece of the current document has been yielded
    starts_line = True
    while line := lines.readline(LONGEST_PIECE):
        if starts_line and line.strip() == SEPARATOR:
            yield from _last_piece(pending, begun)
            pending, size, begun = [], 0, False
        else:
            pending.append(line)
            size += len(line)
            if size >= LONGEST_PIECE:
                yield "".join(pending), False
                pending, size, begun = [], 0, True
        starts_line = line.endswith("\n")
    yield from _last_piece(pending, begun)


def _last_piece(pending: list[str], begun: bool) -> Iterator[tuple[str, bool]]:
    text = "".join(pending)
    if begun or not _blank(text):
        yield text, True


def _blank(text: str) -> bool:
    return not text or text.isspace()


def _json_lines(path: Path, lines: IO[str]) -> Iterator[tuple[str, bool]]:
    for number, line in enumerate(lines, start=1):
        if _blank(line):
            continue
        try:
            record: Any = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); each line must be one object") from None
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            came = f"the fields {sorted(record)}" if isinstance(record, dict) else f"a {type(record).__name__}"
            raise DataError(f'{path}, line {number}: must be an object with a string "text", got {came}')
        # JSON can hold half a surrogate pair, which no encoding can write.
        text = _LONE_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", record["text"])
        if not _blank(text):
            yield from cut(text)


def _decompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    if path.suffix.lower() in COMPRESSIONS and path.stat().st_size == 0:
        raise EOFError("it is empty")
    match path.suffix.lower():
        case ".gz":
            return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        case ".xz":
            return lzma.LZMAFile(raw)
        case ".zst":
            return cast(IO[bytes], _ZstdFile(path, raw))
    return raw


class _ZstdFile:
    """Reads a .zst file of any number of frames. `zstandard`'s own reader takes a truncated file for a complete one."""

    def __init__(self, path: Path, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ModuleNotFoundError:
            raise DataError(f"{path}: reading .zst needs the package zstandard: pip install zstandard") from None
        self._error = zstandard.ZstdError
        # Archives made with --long need a window beyond the default.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._raw = raw
        self._frame: Any = None
        self._ready = b""

    def read(self, size: int) -> bytes:
        while not self._ready:
            rest = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
            block = rest or self._raw.read(1 << 17)
            if not block:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends in the middle of a frame")
                return b""
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            try:
                self._ready = self._frame.decompress(block)
            except self._error as error:
                raise EOFError(error) from None
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def close(self) -> None:
        """Do nothing: the caller closes the underlying file."""


class _Watched(io.RawIOBase):
    """Passes bytes on and counts them for error messages; refuses zero bytes, which no text contains."""

    def __init__(self, path: Path, inner: IO[bytes]) -> None:
        self.count = 0
        self._path = path
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._inner.read(len(buffer))
        if (zero := block.find(b"\0")) >= 0:
            utf_16 = self.count == 0 and block.startswith((b"\xff\xfe", b"\xfe\xff"))
            what = "UTF-16 text" if utf_16 else f"a binary file (a zero byte at offset {self.count + zero})"
            raise DataError(
                f"{self._path}: {what}; give UTF-8 text, plain or JSON lines, also as {', '.join(COMPRESSIONS)}"
            )
        self.count += len(block)
        buffer[: len(block)] = block
        return len(block)
