"""A language model from whatever holds one: a run, a checkpoint, or a folder that transformers reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from longshort.data.tokenizer import Tokenizer, load_tokenizer
from longshort.files import is_of_transformers
from longshort.model import GPT
from longshort.train import ConfigError, TrainConfig, load_model
from longshort.train.checkpoints.tokenizer import beginning_of, checkpoint_tokenizer
from longshort.train.evaluation.checkpoint_scores import text_scores
from longshort.train.machine.distributed import choose_device
from longshort.train.text import open_tokens


class Opened(NamedTuple):
    """A language model and what is known of it."""

    model: GPT
    tokenizer: Tokenizer
    checkpoint: Path
    step: int | None
    config: TrainConfig | None
    beginning: tuple[int, ...]
    """Tokens that go before a text."""


def open_language_model(path: Path, device: torch.device) -> Opened:
    """A run's newest checkpoint, a checkpoint, or the folder of an exported or third-party model.

    Before a text goes what `beginning_of` says; for a folder, what its tokenizer.json puts there.
    """
    if is_of_transformers(path):
        from longshort.hf.importers import from_transformers

        tokenizer = load_tokenizer(path)
        return Opened(from_transformers(path).to(device), tokenizer, path, None, None, tokenizer.beginning)
    model, loaded = load_model(path, device)
    config = TrainConfig.from_dict(loaded.state["config"])
    return Opened(model, checkpoint_tokenizer(loaded), loaded.path, loaded.step, config, beginning_of(loaded))


def evaluate_folder(
    folder: Path,
    *,
    data: Path | None,
    split: str = "validation",
    length: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    bucket: int | None = None,
    yarn: bool = False,
    device: str = "auto",
    progress: Callable[[int], None] = lambda windows_done: None,
) -> dict[str, Any]:
    """What `evaluate_checkpoint` gives, for a folder that transformers reads, which does not name its data."""
    if data is None:
        raise ConfigError(f"--data must be given for {folder}, which does not say what it was trained on, got none")
    opened = open_language_model(folder, choose_device(device))
    config = TrainConfig.from_dict({"model": opened.model.config.to_dict()})
    tokens = open_tokens(data / f"{split}.tokens", opened.tokenizer.fingerprint)
    sizes: dict[str, Any] = {"length": length, "stride": stride, "limit": limit, "bucket": bucket, "yarn": yarn}
    numbers = text_scores(opened.model, tokens, config, **sizes, beginning=opened.beginning, progress=progress)
    return {"checkpoint": str(folder), "step": None, "data": str(data), "split": split, **numbers}
