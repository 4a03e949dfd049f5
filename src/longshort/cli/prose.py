"""Sentences on the terminal, broken between words instead of wherever its last column falls."""

from __future__ import annotations

import shutil
import textwrap

import typer


def say(text: str) -> None:
    """Print prose, line by line, at most as wide as the terminal, or 80 columns where there is none."""
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        typer.echo(textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
