"""Exporting a checkpoint for other programs: what `longshort export` does."""

from __future__ import annotations

from pathlib import Path

from longshort.generation.sample import checkpoint_tokenizer
from longshort.train import load_model

FORMATS = ("hf",)


def export_checkpoint(checkpoint: Path, folder: Path, *, format: str = "hf") -> Path:
    """Write the checkpoint's model and tokenizer to a folder that must not exist yet."""
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    try:
        from longshort.hf import write_folder
    except ImportError as error:
        raise ValueError(str(error)) from None
    model, loaded = load_model(checkpoint)
    return write_folder(model, checkpoint_tokenizer(loaded), folder)
