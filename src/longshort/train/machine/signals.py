"""Turns a stop request, from the keyboard or a scheduler, into a call, so that a run can finish its step and save."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 1.0
"""Seconds after which Ctrl-C counts as pressed again: terminals send it to all processes, and torchrun passes it on."""


@contextmanager
def told_to_stop(
    stop: Callable[[], None], signals: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Within the block these signals only call `stop`; Ctrl-C once more is a KeyboardInterrupt, as outside of it.

    Only the main thread can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = math.inf

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if number == signal.SIGINT and time.monotonic() >= first + AGAIN:
            raise KeyboardInterrupt
        first = min(first, time.monotonic())
        stop()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
