"""The tokenizer of a checkpoint, which lies beside it in its run's folder, and what its model expects before a text."""

from __future__ import annotations

from pathlib import Path

from longshort.data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from longshort.train.checkpoints.checkpoint import Checkpoint, CheckpointError


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
        if (folder / TOKENIZER_FILE).is_file():
            return folder
    raise CheckpointError(f"no {TOKENIZER_FILE} beside {checkpoint}: a checkpoint is read from within its run's folder")


def beginning_of(checkpoint: Checkpoint) -> tuple[int, ...]:
    """The tokens that go before a text: those of the tokenizer if the model was imported, with one; else none.

    Ours are trained without them, and so are imported models once `longshort train` has trained them.
    """
    if "imported" not in checkpoint.state or checkpoint.state["vocabulary"] is None:
        return ()
    return checkpoint_tokenizer(checkpoint).beginning
