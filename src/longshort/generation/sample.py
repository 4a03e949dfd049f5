"""Text from a checkpoint, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longshort.data.tokenizer import Tokenizer, load_tokenizer
from longshort.generation import SoftThinking, TextStream
from longshort.model import GPT
from longshort.train import load_model
from longshort.train.checkpoints.checkpoint import Checkpoint, CheckpointError
from longshort.train.machine.distributed import choose_device


def text_stream(
    checkpoint: Path,
    prompt: str,
    *,
    device: str = "cpu",
    thinking: Mapping[str, Any] | None = None,
    **options: Any,
) -> TextStream:
    """What the checkpoint's model writes after the prompt.

    `thinking` has fields of `SoftThinking`, its `end` as a text; `options` are those of `TextStream`. An imported model
    gets what its tokenizer puts before a text, which ours are not trained with.
    """
    model, loaded = load_model(checkpoint, choose_device(device))
    tokenizer = checkpoint_tokenizer(loaded)
    beginning = tokenizer.beginning if "imported" in loaded.state else ()
    return stream_of(model, tokenizer, prompt, thinking=thinking, beginning=beginning, **options)


def stream_of(
    model: GPT, tokenizer: Tokenizer, prompt: str, *, thinking: Mapping[str, Any] | None = None, **options: Any
) -> TextStream:
    """The same for a model and its tokenizer."""
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
    config, checksum = checkpoint.state.get("config", {}), checkpoint.state.get("tokenizer")
    task, problems = (config.get(section, {}).get(key) for section, key in (("task", "name"), ("rl", "task")))
    if problems is not None or (task is not None and checksum is None):
        answers = "draws answers" if problems is not None else "gives its accuracy"
        raise CheckpointError(
            f"{checkpoint.path}: its tokens are those of the task {problems or task}, not text; longshort evaluate "
            f"{answers}"
        )
    vocabulary = checkpoint.state.get("vocabulary") if task is None else None  # that of a task identifies its examples
    return load_tokenizer(tokenizer_folder(checkpoint.path), fingerprint=vocabulary, checksum=checksum)


def tokenizer_folder(checkpoint: Path) -> Path:
    """The run's folder, which holds the tokenizer that its checkpoints were trained with."""
    for folder in (checkpoint, *checkpoint.parents[:2]):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise CheckpointError(f"no tokenizer.json beside {checkpoint}: a checkpoint is read from within its run's folder")
