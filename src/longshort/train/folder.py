"""Makes sure that a run is written only to an empty or new folder, or to the folder of that same run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longshort.data.tokenizer import TOKENIZER_FILE
from longshort.files import LOCK, alone_in
from longshort.runs.log import METRICS, begins_with_a_run
from longshort.runs.records import RunError
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, checkpoint_names
from longshort.train.settings.config import ConfigError, TrainConfig

CONFIG, OUTPUT = "config.json", "output.txt"
"""Files that `processes` puts into a run's folder before the run starts."""
_NAMED = 3
"""The most names of found files that an error lists."""


@contextmanager
def run_folder(out: Path) -> Iterator[None]:
    """Lock `out` for one run; if it is not a run's folder, nothing is written there, not even the lock."""
    check_is_a_run_folder(out)
    with alone_in(out):
        yield


def check_is_a_run_folder(out: Path) -> None:
    """Raise if `out` holds something other than a run of ours, and name it.

    A log or checkpoints mark a run, and beside those a user may keep anything. Without them, only hidden files and the
    leftovers of a run that was stopped before its first record are allowed.
    """
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        found = "is a file" if out.exists() else "is a link to nothing"
    else:
        other = _not_ours(out)
        if other is None:
            return
        found = f"holds {other}"
    raise ConfigError(f"{out}: {found}; give an empty or new folder, or a run to resume (nothing was written there)")


def _not_ours(out: Path) -> str | None:
    """Something in the folder that no run could have left, in words."""
    lock, log, checkpoints = out / LOCK, out / METRICS, out / CHECKPOINTS
    if os.path.lexists(lock) and (lock.is_symlink() or not lock.is_file() or not _is_lock(lock)):
        return f"a {LOCK} that no run made"
    for path in (log, out / TOKENIZER_FILE):
        if os.path.lexists(path) and not path.is_file():
            return f"{path.name}, which is not a file"
    if os.path.lexists(checkpoints) and not checkpoints.is_dir():
        return f"{CHECKPOINTS}, which is not a folder"
    names = checkpoint_names(checkpoints)
    files = [name for name in names if (checkpoints / name).is_file()]
    if files:
        return f"{CHECKPOINTS}/{files[0]}, which is not a folder"
    try:
        logged = log.exists() and begins_with_a_run(out)
    except RunError as error:
        return f"a {METRICS} that is not the log of a run ({error})"
    return None if logged or names else _beside_leftovers(out)


def _beside_leftovers(out: Path) -> str | None:
    """What the folder holds besides the leftovers of a run that was stopped before its first record."""
    leftovers = {METRICS, "tensorboard"}
    if _is_configuration(out / CONFIG):
        leftovers |= {CONFIG, OUTPUT}
    if not any(_visible(out / CHECKPOINTS)):
        leftovers.add(CHECKPOINTS)
    names = sorted(set(_visible(out)) - leftovers)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(_printable, names[:_NAMED])) + more or None


def _is_lock(path: Path) -> bool:
    """Whether the file is empty or holds a process id, the fallback where the system cannot lock files."""
    words = path.read_text(encoding="utf-8", errors="replace").split()
    return path.stat().st_size == 0 or (bool(words) and words[0].isdigit())


def _visible(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _is_configuration(path: Path) -> bool:
    try:
        TrainConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return False
    return True
