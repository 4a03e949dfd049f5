"""How a verb ends on bad input: one line, not a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends in one line on standard error and exit code 1; anything else is a bug and keeps its traceback."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError):
            # Imported only now: with them comes torch.
            from longshort.train import TrainingStopped
            from longshort.train.processes import RunFailed

            if not isinstance(error, TrainingStopped | RunFailed):
                raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
