"""Makes file operations of a child process fail: the Python side of faults.c, which is compiled here and preloaded.

The process that calls `load` restarts itself with the library in front of libc, which needs Linux and a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
KILL, FULL = 1, 2
_MARK = "LONGSHORT_SOAK_FAULTS"


@dataclass(frozen=True)
class Fault:
    """What happens at the `at`-th file operation (from 1) that belongs to `category`."""

    kind: int
    """KILL: the process gets SIGKILL in the middle of it. FULL: from there on the disk is full."""
    at: int
    category: str = "*"
    """s: writing a checkpoint, l: the log, p: removing old checkpoints, *: any."""


def load(folder: Path) -> None:
    """Restart this program under the library, built in `folder`; returns once that has been done."""
    if os.environ.get(_MARK):
        return
    if not sys.platform.startswith("linux"):
        sys.exit(f"error: the soak needs Linux, whose loader takes LD_PRELOAD; this is {sys.platform}")
    library = folder / "faults.so"
    compiler = os.environ.get("CC", "cc")
    try:
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: cannot compile {SOURCE.name} with {compiler} (or set CC): {error}")
    # One thread, since a process with more cannot be forked safely.
    settings = {"LD_PRELOAD": str(library), _MARK: str(folder), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.soak", *sys.argv[1:]], os.environ | settings)


def folder() -> Path:
    """Where the library was built: a folder used only by this soak."""
    return Path(os.environ[_MARK])


def arm(fault: Fault, folder: Path, report: int) -> None:
    """From here on, count this process's operations in `folder`; the one hit is written to the file `report`."""
    category = ctypes.c_char(fault.category.encode())
    _library().faults_arm(fault.kind, category, ctypes.c_long(fault.at), os.fsencode(folder), report)


def seen() -> int:
    """Operations counted so far."""
    return int(_library().faults_seen())


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.faults_seen.restype = ctypes.c_long
    return library
