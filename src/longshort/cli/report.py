"""`longshort report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, as `longshort train` writes them.")],
    out: Annotated[Path, typer.Option(help="The page; its pictures go to a folder beside it.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page (default: names the variants).")] = None,
    png: Annotated[bool, typer.Option(help="Write the charts as PNG too.")] = True,
) -> None:
    """Make one HTML page from the metrics of runs. It needs no network; charts also as PNG.

    Example: longshort report runs/plain-seed0 runs/ls-seed0 --out runs/report.html
    """
    from longshort.report import write_report
    from longshort.train.values import is_text

    if not is_text(f"{title}{out}"):
        raise ValueError(f"--title and --out must be text in UTF-8, got {title!r} and {str(out)!r}")
    files = write_report(runs, out, title=title, png=png)
    for note in files.notes:
        typer.echo(f"warning: {note}", err=True)
    for path in (files.html, *files.pngs):
        typer.echo(f"wrote {path}")
