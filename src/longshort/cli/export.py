"""`longshort export`: a checkpoint in the form that other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FORMATS = ("hf",)


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder, or one checkpoint in it.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; it must not exist yet.")],
    format: Annotated[str, typer.Option(help="hf: model and tokenizer for Hugging Face transformers.")] = "hf",
) -> None:
    """Write a checkpoint and its tokenizer in the form that other programs read.

    Example: longshort export runs/mine exported --format hf
    """
    typer.echo(f"wrote {export_checkpoint(checkpoint, folder, format=format)}")


def export_checkpoint(checkpoint: Path, folder: Path, *, format: str = "hf") -> Path:
    """Write the checkpoint's model and tokenizer to a folder that must not exist yet."""
    from longshort.data.tokenizer import load_tokenizer
    from longshort.generation.sample import tokenizer_folder
    from longshort.train import load_model

    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    try:
        from longshort.hf import write_folder
    except ImportError as error:
        raise ValueError(str(error)) from None
    model, loaded = load_model(checkpoint)
    return write_folder(model, load_tokenizer(tokenizer_folder(loaded.path)), folder)
