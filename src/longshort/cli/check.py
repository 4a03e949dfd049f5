"""`longshort check`."""

from __future__ import annotations

import typer


def check() -> None:
    """Check the op and the model against the definition. Exits with 1 if a check fails.

    Example: longshort check
    """
    from rich.console import Console
    from rich.progress import track

    from longshort.cli import selfcheck

    console = Console()
    checks = list(track(selfcheck.run_checks(), description="checking", console=console, transient=True, total=None))
    console.print(selfcheck.table(checks))
    failed = [check for check in checks if not check.passed]
    for check in failed:
        reason = check.failure or f"max error {check.error:.1e}, allowed {check.allowed:.1e}"
        typer.echo(f"error: {check.subject}, {check.name}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)
