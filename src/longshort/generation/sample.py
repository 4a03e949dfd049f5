"""Text from a checkpoint, piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longshort.data.tokenizer import Tokenizer, load_tokenizer
from longshort.generation import TextStream
from longshort.train import load_model
from longshort.train.checkpoint import Checkpoint, CheckpointError
from longshort.train.distributed import choose_device


def text_stream(checkpoint: Path, prompt: str, *, device: str = "cpu", **options: Any) -> TextStream:
    """What the checkpoint's model writes after the prompt; `options` are those of `TextStream`."""
    model, loaded = load_model(checkpoint, choose_device(device))
    return TextStream(model, checkpoint_tokenizer(loaded), prompt, **options)


def checkpoint_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that the checkpoint was trained with."""
    wanted = {"fingerprint": checkpoint.state.get("vocabulary"), "checksum": checkpoint.state.get("tokenizer")}
    return load_tokenizer(tokenizer_folder(checkpoint.path), **wanted)


def tokenizer_folder(checkpoint: Path) -> Path:
    """The run's folder, which holds the tokenizer that its checkpoints were trained with."""
    for folder in (checkpoint, *checkpoint.parents[:2]):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise CheckpointError(f"no tokenizer.json beside {checkpoint}: a checkpoint is read from within its run's folder")
