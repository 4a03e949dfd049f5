"""`longshort config`."""

from __future__ import annotations

from typing import Annotated

import typer


def config(
    name: Annotated[str | None, typer.Argument(help="A section, such as optimizer, or a key: run.precision.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="Print a configuration of the package as a YAML file to start from.")
    ] = None,
) -> None:
    """List every configuration key, or print a file to start from.

    Example: longshort config optimizer

    A file to start from: longshort config --preset tiny > mine.yaml
    """
    from longshort.train import ConfigError
    from longshort.train.settings.key_text import describe, starting_file

    if preset is None:
        typer.echo(describe(name))
    elif name is None:
        typer.echo(starting_file(preset))
    else:
        raise ConfigError(f"NAME and --preset must not both be given, got {name!r} and --preset {preset}")
