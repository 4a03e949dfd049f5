"""The vocabulary size of a run's data, for a model that does not give its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from longshort.data.tasks import TASKS, TaskSettings, task_vocabulary
from longshort.data.tokenizer import ByteTokenizer
from longshort.data.tokens import TokenFile
from longshort.model.config import PRESETS
from longshort.train.values import ConfigError, check_one_of

Message = Callable[[str], None]
"""Takes one line that says what was not given and where its value comes from."""


def with_vocabulary(
    model: dict[str, Any], path: str | None, task: str | None, settings: TaskSettings, message: Message
) -> dict[str, Any]:
    """The section `model` with the data's vocabulary size, if it gives none or null.

    A preset's size, which is that of a published model, is kept if it is large enough for the data. A given size is
    never changed: if it is too small, the trainer says so.
    """
    if model.get("vocab_size") is not None:
        return model
    preset = {} if "vocab_size" in model else PRESETS.get(str(model.get("preset")), {})
    own = preset.get("vocab_size", 0)
    if task is not None:
        check_one_of("task.name", task, tuple(TASKS))
    try:
        needed, source = data_vocabulary(path, task, settings)
    except ValueError as error:
        if own:  # the trainer reports missing data
            return model
        raise ConfigError(f"model.vocab_size is not given and cannot be read from the data: {error}") from None
    if needed <= own:
        return model
    message(f"model.vocab_size: {needed:,}, the vocabulary of {source}{f'; the preset has {own:,}' if own else ''}")
    return model | {"vocab_size": needed}


def data_vocabulary(path: str | None, task: str | None, settings: TaskSettings) -> tuple[int, str]:
    """The vocabulary size of a run's data, and what the data is, in words. Nothing is prepared or generated.

    >>> data_vocabulary(None, "listops", TaskSettings())
    (16, 'the task listops')
    >>> data_vocabulary(None, None, TaskSettings())
    (257, 'bytes')
    """
    if task is not None:
        return task_vocabulary(task, settings), f"the task {task}"
    if path is None:
        return ByteTokenizer.vocab_size, "bytes"
    return TokenFile.open(Path(path) / "train.tokens").vocab_size, path
