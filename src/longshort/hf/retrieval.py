"""The retrieval suite on whatever holds a language model: a run, a checkpoint, or a folder that transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longshort.data.tokens import TokenFile
from longshort.hf.opened import open_language_model
from longshort.model import lengthened
from longshort.train import ConfigError, TrainConfig
from longshort.train.evaluation.retrieval import EXAMPLES, LENGTHS, Progress, evaluate_retrieval, skipped_lines
from longshort.train.machine.distributed import choose_device


def evaluate_suite(
    path: Path,
    *,
    data: Path | None = None,
    length: int | None = None,
    examples: int | None = None,
    split: str = "validation",
    yarn: bool = False,
    device: str = "auto",
    progress: Progress = lambda kind, length, done: None,
) -> dict[str, Any]:
    """Run the suite; `data`, for the kinds in books, is the run's own text if None.

    Without a `length`, all those of the suite that fit into the model's context are asked; a given one may exceed it,
    unless positions are learned, and with `yarn` the model is `lengthened` for it.
    """
    if split not in ("train", "validation", "test"):
        raise ConfigError(f"split must be train, validation or test, got {split!r}")
    opened = open_language_model(path, choose_device(device))
    context = opened.model.config.context
    if length is None and context < LENGTHS[0]:
        raise ConfigError(
            f"{path}: the suite begins at {LENGTHS[0]:,} tokens, but the model's context is {context:,}; give --length "
            f"{context}"
        )
    if length is not None and length > context and opened.model.config.positions == "learned":
        raise ConfigError(f"length must be at most {context}, which positions are learned for, got {length}")
    model = lengthened(opened.model, length or context) if yarn else opened.model
    if data is not None:
        TokenFile.open(data / "train.tokens")  # a wrong folder is an error, where a missing one is a reason to skip
    books = data or _own_text(opened.config)
    result = evaluate_retrieval(
        model,
        opened.tokenizer,
        beginning=opened.beginning,
        books=books,
        lengths=LENGTHS if length is None else (length,),
        past_context=length is not None,
        examples=examples or EXAMPLES,
        split=split,
        precision="auto" if opened.config is None else opened.config.run.precision,
        progress=progress,
    )
    if not result["rows"]:
        raise ConfigError(f"{path}: nothing can be asked: {'; '.join(skipped_lines(result))}")
    where = {"checkpoint": str(opened.checkpoint), "step": opened.step, "data": None if books is None else str(books)}
    return where | result | ({"yarn": True} if yarn else {})


def _own_text(config: TrainConfig | None) -> Path | None:
    """The folder of the text that a run was trained on, if it is still there."""
    for path in () if config is None else (config.data.path, config.task.path):
        if path is not None and (Path(path) / "train.tokens").is_file():
            return Path(path)
    return None
