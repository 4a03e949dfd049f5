"""The command line: verbs of a few lines that call plain functions.

What a verb needs is imported inside it, so that `longshort --help` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from longshort import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Transformers that train stably and run long, because each attention head has its own reach."""


@app.command()
def demo() -> None:
    """Check the op and the model on this machine and print a table; exits with 1 if a check fails.

    Example: longshort demo
    """
    from rich.console import Console
    from rich.progress import track

    from longshort.lab import selfcheck

    console = Console()
    checks = list(track(selfcheck.run_checks(), description="checking", console=console, transient=True, total=None))
    console.print(selfcheck.table(checks))
    failed = [check for check in checks if not check.passed]
    for check in failed:
        reason = check.failure or f"max error {check.error:.1e}, allowed {check.allowed:.1e}"
        typer.echo(f"error: {check.subject}, {check.name}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option(help="Smallest shape, two rounds: a look, not a measurement.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; rows are medians over them.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's own choice).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the results as JSON here, and a .md table beside it.")] = None,
) -> None:
    """Time LS-attention against its peers on this machine; every row passes a correctness check first.

    Example: longshort bench --out docs/results/attention-cpu.json
    """
    import torch
    from rich.console import Console
    from rich.markdown import Markdown

    from longshort.bench import attention as benchmark
    from longshort.bench.registry import CPU_SHAPES

    if threads is not None:
        torch.set_num_threads(threads)
    console = Console()
    shapes = CPU_SHAPES[:1] if quick else CPU_SHAPES
    try:
        results = benchmark.run(shapes=shapes, rounds=2 if quick else rounds, progress=lambda line: typer.echo(line))
    except RuntimeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    console.print(Markdown(benchmark.table(results)))
    if out is not None:
        results["command"] = (
            f"longshort bench --rounds {results['rounds']} --threads {torch.get_num_threads()} --out {out}"
        )
        for path in benchmark.save(results, out):
            typer.echo(f"wrote {path}")
