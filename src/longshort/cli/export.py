"""`longshort export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder, or one checkpoint in it.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; it must not exist yet.")],
    format: Annotated[str, typer.Option(help="hf: model and tokenizer for Hugging Face transformers.")] = "hf",
) -> None:
    """Write a checkpoint and its tokenizer for other programs.

    Example: longshort export runs/mine exported --format hf
    """
    from longshort.hf.export import export_checkpoint

    typer.echo(f"wrote {export_checkpoint(checkpoint, folder, format=format)}")
