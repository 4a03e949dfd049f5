"""How a verb ends on bad input: one line, not a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperGroup

_LONGEST = 1000
"""Most characters of a line, since a value quoted in it may have any length."""
_BROKEN_PIPE = 141
"""The exit code that a shell reports for a program ended by SIGPIPE."""
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's UsageError: some versions of typer bundle their own click, others import the installed one."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends in one line on standard error and exit code 1; anything else is a bug and keeps its traceback."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(_BROKEN_PIPE) from None
    except Exception as error:
        if (reason := _reason(error)) is None:
            raise
        _say(reason)
        raise typer.Exit(1) from None


class OneLineGroup(TyperGroup):
    """The verbs, with one-line errors for wrong options and arguments too."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _one_line_usage():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _one_line_usage():
            return super().invoke(ctx)


@contextmanager
def _one_line_usage() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        context: Any = getattr(error, "ctx", None)
        help_line = f" (see {context.command_path} --help)" if context is not None else ""
        _say(f"{error.format_message().rstrip('.')}{help_line}")  # type: ignore[attr-defined]
        raise typer.Exit(2) from None


def _say(reason: str) -> None:
    line = " ".join(reason.split())
    typer.echo(f"error: {line if len(line) <= _LONGEST else f'{line[:_LONGEST]} ...'}", err=True)


def _reason(error: Exception) -> str | None:
    """What to tell the user; None for a bug."""
    match error:
        case OSError() if error.filename is not None and error.strerror:
            return f"{error.filename}: {error.strerror}"
        case ValueError() | OSError():
            return str(error)
        case RuntimeError() | MemoryError():
            # Imported only now, since they load torch.
            from longshort.train import TrainingStopped
            from longshort.train.machine.memory import shortage
            from longshort.train.sweeps.processes import RunFailed

            return str(error) if isinstance(error, TrainingStopped | RunFailed) else shortage(error)
    return None


def _drop_output() -> None:
    """Discard output that nobody reads: a full buffer must not fail again when Python closes it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
