"""Tokens on disk: NAME.tokens holds only token ids, to be memory-mapped; the header NAME.json describes them.

The header is written last, once the tokens are safely on disk, so a file with a header is complete.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from longshort.data.errors import DataError
from longshort.data.tokenizer import Tokenizer, token_dtype, tokenizer_checksum
from longshort.files import flush, sealed, sha256, unsealed, write_atomically

FORMAT = "longshort-tokens"
VERSION = 1
_FIELDS = {
    "dtype": str,
    "count": int,
    "documents": int,
    "vocab_size": int,
    "fingerprint": str,
    "end_of_document": int,
    "checksum": str,
    "source": str,
    "recipe": str,
}
_REMEDY = "prepare the data again: longshort data"


def header_path(path: Path) -> Path:
    """Where the header of a token file is.

    >>> header_path(Path("data/train.tokens")).name
    'train.json'
    """
    return path.with_suffix(".json")


@dataclass(frozen=True)
class TokenFile:
    """A token file, opened for reading."""

    path: Path
    header: dict[str, Any]
    tokens: NDArray[Any]
    """Read-only, memory-mapped, one dimension, uint16 or uint32."""

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False, fingerprint: str | None = None) -> Self:
        """Open a token file, checking its header and that its size matches.

        Args:
            verify: Also read the whole file and compare the checksum.
            fingerprint: Fingerprint of the vocabulary that the tokens must belong to.
        """
        path = Path(path)
        header = _read_header(path)
        dtype, count = np.dtype(header["dtype"]).newbyteorder("<"), header["count"]
        size, expected = path.stat().st_size, count * dtype.itemsize
        if size != expected:
            raise DataError(f"{path}: must have the {expected:,} bytes that its header says, got {size:,}; {_REMEDY}")
        if fingerprint is not None and fingerprint != header["fingerprint"]:
            raise DataError(
                f"{path}: tokens of another vocabulary (fingerprint {header['fingerprint'][:12]}..., not "
                f"{fingerprint[:12]}...); use the data or the tokenizer that the model was trained with"
            )
        if verify and (found := f"sha256:{sha256(path)}") != header["checksum"]:
            raise DataError(f"{path}: damaged: its header says checksum {header['checksum']}, got {found}; {_REMEDY}")
        # An empty file cannot be mapped.
        tokens = np.memmap(path, dtype=dtype, mode="r") if count else np.empty(0, dtype=dtype)
        tokens.flags.writeable = False
        return cls(path, header, tokens)

    def __len__(self) -> int:
        return int(self.header["count"])

    @property
    def vocab_size(self) -> int:
        return int(self.header["vocab_size"])

    @property
    def fingerprint(self) -> str:
        return str(self.header["fingerprint"])

    @property
    def end_of_document(self) -> int:
        return int(self.header["end_of_document"])

    @property
    def checksum(self) -> str:
        """Checksum of the tokens."""
        return str(self.header["checksum"])

    @property
    def tokenizer_checksum(self) -> str | None:
        """Checksum of the tokenizer.json beside it; None in files from versions that did not record it."""
        return self.header.get("tokenizer")

    @property
    def documents(self) -> int:
        return int(self.header["documents"])


class TokenWriter:
    """Writes a token file chunk by chunk under a temporary name; it becomes visible with `commit`.

    Use it as a context manager: leaving without a commit removes the temporary file.
    """

    def __init__(self, path: Path | str, tokenizer: Tokenizer, *, source: str = "", recipe: str = "") -> None:
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.tmp")
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._digest = hashlib.sha256()
        self._header: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": self._dtype.name,
            "count": 0,
            "documents": 0,
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
            "end_of_document": tokenizer.end_of_document,
            "checksum": "",
            "source": source,
            "recipe": recipe,
            "tokenizer": tokenizer_checksum(tokenizer.to_dict()),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._temporary.open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    @property
    def count(self) -> int:
        return int(self._header["count"])

    def append(self, ids: NDArray[Any]) -> None:
        """Add a chunk; documents are counted by their end tokens."""
        vocab_size = self._header["vocab_size"]
        if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
            raise DataError(f"ids must be from 0 to {vocab_size - 1}, got {ids.min()} to {ids.max()}")
        data = ids.astype(self._dtype, copy=False).tobytes()
        self._file.write(data)
        self._digest.update(data)
        self._header["count"] += int(ids.size)
        self._header["documents"] += int(np.count_nonzero(ids == self._header["end_of_document"]))

    def install(self) -> None:
        """Rename the tokens to their final name, still without a header: to a reader the file is unfinished."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        header_path(self.path).unlink(missing_ok=True)
        os.replace(self._temporary, self.path)
        flush(self.path.parent)

    def publish(self) -> TokenFile:
        """Write the header of an installed file, which completes it."""
        self._header["checksum"] = f"sha256:{self._digest.hexdigest()}"
        write_atomically(header_path(self.path), sealed(self._header, indent=2) + "\n")
        flush(self.path.parent)
        return TokenFile.open(self.path)

    def commit(self) -> TokenFile:
        self.install()
        return self.publish()


def write_token_file(
    path: Path | str, chunks: Iterable[NDArray[Any]], tokenizer: Tokenizer, *, source: str = ""
) -> TokenFile:
    """Write chunks of token ids as they come, holding one at a time; the file appears complete or not at all.

    >>> import tempfile
    >>> from longshort.data.tokenizer import ByteTokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     chunks = [np.array([104, 105, 256], dtype=np.uint16)]
    ...     written = write_token_file(Path(folder, "train.tokens"), chunks, ByteTokenizer())
    ...     len(written), written.documents
    (3, 1)
    """
    with TokenWriter(path, tokenizer, source=source) as writer:
        for chunk in chunks:
            writer.append(chunk)
        return writer.commit()


def _read_header(path: Path) -> dict[str, Any]:
    if not path.is_file():
        folder = path.parent
        is_text = folder.is_file() or any(folder.glob("*.txt")) or any(folder.glob("*.jsonl"))
        how = f"{folder} --out FOLDER, and name that folder" if is_text else f"SOURCES --out {folder}"
        raise DataError(f"{path}: no such token file; make one: longshort data {how}")
    beside = header_path(path)
    try:
        header = unsealed(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: unfinished, since its header {beside.name} is missing; {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{beside}: cannot be read ({error}); {_REMEDY}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(
            f"{beside}: not the header of a token file (its format must be {FORMAT!r}); prepare the data again"
        )
    if header.get("version") != VERSION:
        raise DataError(f"{beside}: format version must be {VERSION}, got {header.get('version')!r}; {_REMEDY}")
    for field, kind in _FIELDS.items():
        if not isinstance(header.get(field), kind):
            raise DataError(f"{beside}: {field} must be {kind.__name__}, got {header.get(field)!r}; {_REMEDY}")
    if header["dtype"] not in ("uint16", "uint32") or header["count"] < 0:
        raise DataError(
            f"{beside}: must describe tokens of uint16 or uint32, got {header['count']} of {header['dtype']}; {_REMEDY}"
        )
    return header
