"""The vocabulary size of a run's data, for a model that does not give its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from longshort.data.problems import ProblemTask, open_task
from longshort.data.tasks import TASKS, task_vocabulary
from longshort.data.tokenizer import ByteTokenizer
from longshort.data.tokens import TokenFile
from longshort.model.presets import PRESETS
from longshort.train.settings.rl import RLConfig
from longshort.train.settings.sections import DataConfig, TaskConfig
from longshort.train.settings.values import ConfigError, check_one_of

Message = Callable[[str], None]
"""Takes one line that says what was not given and where its value comes from."""


def vocabulary_of(data: DataConfig, task: TaskConfig, rl: RLConfig) -> tuple[int, str]:
    """The vocabulary size of what a run trains on, and what that is, in words. Nothing is prepared or generated.

    >>> vocabulary_of(DataConfig(), TaskConfig(name="listops"), RLConfig())
    (16, 'the task listops')
    """
    if rl.task is not None:
        return open_problems(rl.task, rl.task_options).vocab_size, f"the task {rl.task}"
    if task.name is not None:
        return task_vocabulary(task.name, task), f"the task {task.name}"
    if data.path is None:
        return ByteTokenizer.vocab_size, "bytes"
    return TokenFile.open(Path(data.path) / "train.tokens").vocab_size, data.path


def open_problems(name: str, options: dict[str, Any]) -> ProblemTask:
    """The task that draws problems; what is wrong with it names the keys of the configuration."""
    try:
        return open_task(name, options)
    except ValueError as error:
        text = str(error)
        raise ConfigError(f"rl.{text}" if text.startswith("task ") else f"rl.task: {text}") from None


def with_vocabulary(
    model: dict[str, Any], data: DataConfig, task: TaskConfig, rl: RLConfig, message: Message
) -> dict[str, Any]:
    """The section `model` with the data's vocabulary size, if it gives none or null.

    A preset's size, which is that of a published model, is kept if it is large enough for the data. A given size is
    never changed: if it is too small, the trainer says so.
    """
    if model.get("vocab_size") is not None:
        return model
    preset = {} if "vocab_size" in model else PRESETS.get(str(model.get("preset")), {})
    own = preset.get("vocab_size", 0)
    if task.name is not None:
        check_one_of("task.name", task.name, tuple(TASKS))
    try:
        needed, words = vocabulary_of(data, task, rl)
    except ValueError as error:
        if own:  # the trainer reports missing data
            return model
        raise ConfigError(f"model.vocab_size is not given and cannot be read from the data: {error}") from None
    if needed <= own:
        return model
    message(f"model.vocab_size: {needed:,}, the vocabulary of {words}{f'; the preset has {own:,}' if own else ''}")
    return model | {"vocab_size": needed}
