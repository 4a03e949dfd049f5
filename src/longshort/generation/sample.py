"""Text from a checkpoint, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longshort.data.tokenizer import Tokenizer, load_tokenizer
from longshort.generation import SoftThinking, TextStream
from longshort.train import load_model
from longshort.train.checkpoint import Checkpoint, CheckpointError
from longshort.train.distributed import choose_device


def text_stream(
    checkpoint: Path,
    prompt: str,
    *,
    device: str = "cpu",
    thinking: Mapping[str, Any] | None = None,
    **options: Any,
) -> TextStream:
    """What the checkpoint's model writes after the prompt.

    `thinking` has fields of `SoftThinking`, its `end` as a text; `options` are those of `TextStream`.
    """
    model, loaded = load_model(checkpoint, choose_device(device))
    tokenizer = checkpoint_tokenizer(loaded)
    if thinking is not None:
        options["thinking"] = SoftThinking(**dict(thinking) | {"end": _single_token(tokenizer, thinking["end"])})
    return TextStream(model, tokenizer, prompt, **options)


def _single_token(tokenizer: Tokenizer, end: str) -> int:
    """The token of a text: with the last of several, the thinking would end in places that do not hold all of it."""
    try:
        ids = tokenizer.encode(end).tolist()
    except UnicodeEncodeError:
        raise ValueError(f"end must be text in UTF-8, got {end!r}") from None
    if len(ids) != 1:
        raise ValueError(f"end must be one token of the tokenizer, got {end!r}, which is {len(ids)}")
    return ids[0]


def checkpoint_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer that the checkpoint was trained with."""
    task = checkpoint.state.get("config", {}).get("rl", {}).get("task")
    if task is not None:
        raise CheckpointError(
            f"{checkpoint.path}: its tokens are those of the task {task}, not text; longshort evaluate draws answers"
        )
    on_task = checkpoint.state.get("config", {}).get("task", {}).get("name") is not None
    vocabulary = None if on_task else checkpoint.state.get("vocabulary")  # that of a task identifies its examples
    folder = tokenizer_folder(checkpoint.path)
    return load_tokenizer(folder, fingerprint=vocabulary, checksum=checkpoint.state.get("tokenizer"))


def tokenizer_folder(checkpoint: Path) -> Path:
    """The run's folder, which holds the tokenizer that its checkpoints were trained with."""
    for folder in (checkpoint, *checkpoint.parents[:2]):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise CheckpointError(f"no tokenizer.json beside {checkpoint}: a checkpoint is read from within its run's folder")
