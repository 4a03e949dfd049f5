"""Writes files and folders so that they are either complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

LOCK = ".lock"
_SEAL = ', "crc32": "'


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write to a temporary file beside `path`, flush it to disk, then rename it: a reader never sees half a file."""
    if path.exists() and not path.is_file():  # renaming over /dev/null would remove it
        raise OSError(f"{path}: not a file; give the name of a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        give_usual_mode(Path(name))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def give_usual_mode(path: Path) -> None:
    """Give a file the mode that a plain `open` would: some writers use 0600, which other users cannot read."""
    os.chmod(path, 0o666 & ~_umask())


def flush(path: Path) -> None:
    """Make a file, or the renames in a folder, survive a power cut. Windows cannot open folders; it needs no call."""
    with suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_writable(path: Path) -> None:
    """Raise if no file can be written to `path`. Call it before the work whose result goes there."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: not a file; give the name of a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


def check_replaceable(path: Path, mark: str) -> None:
    """Raise if `path` is a user's own file, or in a folder that cannot be written to.

    Files that we write under such a name always contain `mark`. Call it before the work whose result goes there.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: not a file; give the name of a file to write")
    if path.is_file() and mark.encode() not in path.read_bytes():
        raise ValueError(f"{path}: already exists and is not one of our files; give another name, or move it away")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise ValueError(f"{folder}: not a folder, so {path.name} cannot be written there; give another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder}: no permission to write {path.name} there; give another name")


def parse_json(text: str, **options: Any) -> Any:
    """`json.loads`; text that is nested too deeply is a ValueError as well."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_of_transformers(folder: Path) -> bool:
    """Whether the folder's config.json names a type of model, as transformers' do; that of a run does not."""
    try:
        found = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "model_type" in found


def write_json(path: Path, data: Any) -> Path:
    """Write indented JSON with a final newline, atomically. NaN and infinity are errors, since JSON has neither."""
    return write_atomically(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


class Damaged(ValueError):
    """Text that has changed since it was written."""


def sealed(data: dict[str, Any], *, indent: int | None = None) -> str:
    """JSON with a checksum of the text as its last member, by which `unsealed` detects changes.

    >>> sealed({"step": 3})
    '{"step": 3, "crc32": "d3a4e216"}'
    """
    body = json.dumps(data, indent=indent, allow_nan=False)[:-1].rstrip()
    return f'{body}{_SEAL}{zlib.crc32(body.encode()):08x}"}}'


def unsealed(text: str) -> Any:
    """Read JSON; an error if `sealed` wrote it and it has changed since. JSON without a checksum is accepted.

    >>> unsealed('{"step": 7, "crc32": "d3a4e216"}')
    Traceback (most recent call last):
    longshort.files.Damaged: its checksum differs
    """
    data = parse_json(text, parse_constant=lambda name: None)
    body, seal, rest = text.rpartition(_SEAL)
    if seal:
        if not rest.startswith(f'{zlib.crc32(body.encode()):08x}"'):
            raise Damaged("its checksum differs")
        del data["crc32"]
    return data


def check_new_folder(path: Path) -> None:
    """Raise if `path` exists and is not an empty folder."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path}: already exists; give the name of a new folder")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft folder beside `path`, renamed to `path` when the block ends and removed if the block fails.

    An existing path is an error unless it is an empty folder: nothing is overwritten.
    """
    check_new_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        yield draft
        for inside in (draft, *draft.rglob("*")):
            # mkdtemp and safetensors create files that other users cannot read.
            inside.chmod((0o777 if inside.is_dir() else 0o666) & ~_umask())
            if inside.is_file():
                with inside.open("rb+") as handle:
                    os.fsync(handle.fileno())
        if path.is_dir():
            path.rmdir()  # it was empty when the block began; fails if it no longer is
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def alone_in(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock the folder for the duration of the block; a second process gets an error at once, or waits for the first.

    The lock ends with the process that holds it. Where files cannot be locked, it has no effect.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        raise ValueError(f"{folder}: in use by another process; wait until it ends, or choose another folder") from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        lock.release()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
