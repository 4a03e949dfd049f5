"""The command line: one file per verb, each a few lines that call a plain function.

A verb imports what it needs when it is called, so that `longshort --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from longshort.cli import (
    check,
    compare,
    config,
    convert,
    data,
    demo,
    evaluate,
    export,
    generate,
    import_,
    inspect,
    moved,
    plan,
    report,
    rl,
    show,
    train,
)
from longshort.cli.errors import OneLineGroup, one_line_errors
from longshort.cli.help import CompareCommand, ConfigCommand
from longshort.version import __version__

__all__ = ["app", "one_line_errors"]

app = typer.Typer(
    cls=OneLineGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its panels take longer to import than everything else
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Transformers that train stably and run long, because each attention head has its own reach."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "check": check.check,
    "data": data.data,
    "config": config.config,
    "show": show.show,
    "plan": plan.plan,
    "train": train.train,
    "rl": rl.rl,
    "compare": compare.compare,
    "evaluate": evaluate.evaluate,
    "generate": generate.generate,
    "report": report.report,
    "export": export.export,
    "import": import_.import_,
    "inspect": inspect.inspect,
    "convert": convert.convert,
}
_HELP = {"config": ConfigCommand, "compare": CompareCommand}
for _name, _verb in VERBS.items():
    app.command(_name, cls=_HELP.get(_name))(one_line_errors()(_verb))
for _verb in (moved.reproduce, moved.bench):
    app.command(hidden=True, add_help_option=False, context_settings=moved.ANY_ARGUMENTS)(_verb)
