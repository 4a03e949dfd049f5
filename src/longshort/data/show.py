"""What `longshort data` shows while it prepares: where the text comes from, a progress bar, and a summary."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from longshort.data.corpus import standard_library_corpus
from longshort.data.folder import PreparedData
from longshort.data.join import join
from longshort.data.prepare import PrepareProgress, prepare


def prepare_and_show(sources: Sequence[str], out: Path, *, console: Console, **options: Any) -> PreparedData:
    """`prepare` with a progress bar and a summary; without sources it uses the standard library, and says so."""
    if not sources:
        console.print("no SOURCES: using the source text of the running Python's own standard library", soft_wrap=True)
    with progress_bar(console) as progress:
        prepared = prepare(sources or standard_library_corpus(), out, progress=progress, **options)
    _show(prepared, console, is_part=options.get("part") is not None)
    return prepared


def join_and_show(out: Path, count: int, *, console: Console, force: bool = False) -> PreparedData:
    """`join` with a progress bar and a summary."""
    with progress_bar(console) as progress:
        joined = join(out, count, force=force, progress=progress)
    _show(joined, console)
    return joined


def _show(prepared: PreparedData, console: Console, *, is_part: bool = False) -> None:
    for line in summary(prepared, is_part=is_part):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


@contextlib.contextmanager
def progress_bar(console: Console) -> Iterator[PrepareProgress]:
    """A bar that follows the stages of `prepare` and disappears at the end; shown only in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)


def summary(prepared: PreparedData, *, is_part: bool = False) -> Iterator[str]:
    """Lines that say what was read, where it was written, and how much it is."""
    tokenizer = prepared.tokenizer
    yield f"read    {prepared.source}"
    yield (
        f"found   {prepared.folder}: already prepared, nothing to do"
        if prepared.reused
        else f"wrote   {prepared.folder}"
    )
    for name, tokens in prepared.splits.items():
        yield f"        {name:<11}{len(tokens):>14,} tokens {tokens.documents:>10,} documents"
    empty = [name for name, tokens in prepared.splits.items() if not len(tokens)]
    if empty and not is_part:
        yield f"note    no text for {' and '.join(empty)}: training needs validation, `evaluate` its --split"
    yield f"        vocabulary of {tokenizer.vocab_size:,}, fingerprint {tokenizer.fingerprint[:12]}"
