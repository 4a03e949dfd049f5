"""Processes that work for this one and end with it, however it ends.

They are spawned, not forked: the caller may have threads (torch does), and forking then can deadlock.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import Any

from longshort.data.errors import DataError


@contextmanager
def spawned(
    workers: int, what: str, start: Callable[..., None] | None = None, *given: Any
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, shut down after the block; each calls `start(*given)` first.

    Args:
        what: What the processes do, for the error if one of them dies: tokenizing.
    """
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (start, *given))
    try:
        yield pool
    except BrokenProcessPool:
        raise DataError(
            f"a {what} process died (out of memory, or the calling script does not keep its work under "
            'if __name__ == "__main__"); try workers=1'
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(start: Callable[..., None] | None, *given: Any) -> None:
    # Ctrl-C reaches the whole group; the parent decides what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A pool's processes wait forever if their parent is killed: each holds both ends of its own queue.
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    if start is not None:
        start(*given)


def _leave_with_the_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
