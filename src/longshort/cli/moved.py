"""Verbs that moved to a checkout of the repository: each ends with one line that says so."""

from __future__ import annotations

from typing import NoReturn

import typer

ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Accepts any options, so that the line is printed whatever they are."""


def reproduce() -> None:
    """Now `python -m experiments`."""
    _say("reproduce", "experiments")


def bench() -> None:
    """Now `python -m benchmarks`."""
    _say("bench", "benchmarks")


def _say(verb: str, module: str) -> NoReturn:
    typer.echo(f"error: `longshort {verb}` is now `python -m {module}`, in a checkout of the repository", err=True)
    raise typer.Exit(1)
