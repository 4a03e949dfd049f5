"""A folder of prepared data: DIR/{train,validation,test}.tokens with headers, and DIR/tokenizer.json.

Everything is written under a temporary name and renamed at the end, the header of train last: a folder with a
train.json is complete. One process at a time works on a folder; a second one waits and finds the work done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshort.data.corpus import SPLITS
from longshort.data.errors import DataError
from longshort.data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from longshort.data.tokens import FORMAT, TokenFile, TokenWriter, header_path
from longshort.files import parse_json, sealed, write_atomically, write_json

PARTS = "parts"
"""The folder of the parts that a folder was, or will be, joined from"""
MANIFEST = "manifest.json"
"""What a joined folder was joined from"""

_OURS = {f"{split}{ending}" for split in SPLITS for ending in (".tokens", ".json")} | {TOKENIZER_FILE, PARTS, MANIFEST}


@dataclass(frozen=True)
class PreparedData:
    """A prepared data folder."""

    folder: Path
    tokenizer: Tokenizer
    splits: dict[str, TokenFile]
    source: str
    reused: bool
    """Whether it already existed, made from the same sources with the same settings."""


def token_path(out: Path, split: str) -> Path:
    return out / f"{split}.tokens"


@contextlib.contextmanager
def token_writers(out: Path, tokenizer: Tokenizer, *, source: str, recipe: str) -> Iterator[dict[str, TokenWriter]]:
    """A writer for each split; `publish` completes them, and leaving without it removes what they wrote."""
    with contextlib.ExitStack() as stack:
        yield {
            split: stack.enter_context(TokenWriter(token_path(out, split), tokenizer, source=source, recipe=recipe))
            for split in SPLITS
        }


def publish(
    out: Path, writers: Mapping[str, TokenWriter], tokenizer: Tokenizer, manifest: dict[str, Any] | None = None
) -> dict[str, TokenFile]:
    """Give the files their final names. Without train's header, which comes last, the folder is incomplete."""
    for split in SPLITS:
        writers[split].install()
    write_json(out / TOKENIZER_FILE, tokenizer.to_dict())
    if manifest is None:
        (out / MANIFEST).unlink(missing_ok=True)
    else:
        write_atomically(out / MANIFEST, sealed(manifest, indent=2) + "\n")
    published = {split: writers[split].publish() for split in reversed(SPLITS)}
    return {split: published[split] for split in SPLITS}


def remove_leftovers(out: Path) -> None:
    """Remove the temporary files of interrupted calls."""
    for leftover in [entry for entry in out.iterdir() if _temporary(entry.name)]:
        leftover.unlink()


def _temporary(name: str) -> bool:
    return name.endswith(".tmp") and any(name.startswith(f".{ours}.") for ours in _OURS)


def whole(out: Path, recipe: str) -> dict[str, TokenFile] | None:
    """The token files of an earlier call with the same recipe; None if there are none or one is damaged."""
    try:
        files = {split: TokenFile.open(token_path(out, split), verify=True) for split in SPLITS}
        train = files["train"]
        load_tokenizer(out, fingerprint=train.fingerprint, checksum=train.tokenizer_checksum)
    except DataError:
        return None
    return files if all(file.header["recipe"] == recipe for file in files.values()) else None


def refuse_other_content(out: Path, recipe: str, *, parts: bool = False) -> None:
    """Raise if the folder holds anything but data of this recipe, finished or not, and, if allowed, its parts."""
    names = {entry.name for entry in out.iterdir() if not _temporary(entry.name)} - ({PARTS} if parts else set())
    # Token files are renamed before all else, so that the leftovers of an interrupted call always include one.
    if names and ("train.tokens" not in names or not names <= _OURS):
        raise DataError(
            f"{out}: holds other files ({min(names - _OURS or names)}); give an empty or new folder, or --force"
        )
    for header in (header_path(token_path(out, split)) for split in SPLITS):
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
def sole_use_of(folder: Path) -> Iterator[None]:
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
