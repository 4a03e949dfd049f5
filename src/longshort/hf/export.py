"""Exporting a checkpoint for other programs: what `longshort export` does."""

from __future__ import annotations

from pathlib import Path

from longshort.generation.sample import checkpoint_tokenizer, tokenizer_folder
from longshort.hf.chat_template import read_chat_template
from longshort.train import TrainConfig, load_model
from longshort.train.vocabulary import open_problems

FORMATS = ("hf",)


def export_checkpoint(checkpoint: Path, folder: Path, *, format: str = "hf") -> Path:
    """Write the checkpoint's model, and its tokenizer if it has one, to a folder that must not exist yet."""
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    try:
        from longshort.hf import write_folder
    except ImportError as error:
        raise ValueError(str(error)) from None
    model, loaded = load_model(checkpoint)
    rl = TrainConfig.from_dict(loaded.state["config"]).rl
    if rl.task is not None:  # its tokens are not text
        return write_folder(model, None, folder, end=open_problems(rl.task, rl.task_options).stop)
    template = read_chat_template(tokenizer_folder(loaded.path))
    return write_folder(model, checkpoint_tokenizer(loaded), folder, chat_template=template)
