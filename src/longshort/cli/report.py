"""`longshort report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of runs, as `longshort compare` leaves them.")
    ],
    out: Annotated[Path, typer.Option(help="The page; its pictures go to a folder beside it.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page (default: the names of the variants).")] = None,
    png: Annotated[bool, typer.Option(help="Write the charts as PNG files too.")] = True,
    watch: Annotated[bool, typer.Option("--watch", help="Serve the page to this machine and keep it current.")] = False,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of --watch (default: a free one).")] = None,
) -> None:
    """Make one offline HTML page from the metrics of runs.

    Example: longshort report runs/plain-seed0 runs/ls-seed0 --out runs/report.html

    Example: longshort report runs/compare --watch
    """
    from longshort.cli.prose import say
    from longshort.report import write_report
    from longshort.runs import find_runs
    from longshort.train.settings.values import is_text

    if not is_text(f"{title}{out}"):
        raise ValueError(f"--title and --out must be text in UTF-8, got {title!r} and {str(out)!r}")
    if port is not None and not watch:
        raise ValueError(f"--port must come with --watch, got --port {port} alone")
    if watch:
        from longshort.report.watch import watch as keep_current

        keep_current(runs, out, title=title, port=port or 0, say=say)
        return
    files = write_report(find_runs(runs), out, title=title, png=png)
    for note in files.notes:
        typer.echo(f"warning: {note}", err=True)
    for path in (files.html, *files.pngs):
        typer.echo(f"wrote {path}")
