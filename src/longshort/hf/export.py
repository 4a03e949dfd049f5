"""Exporting a checkpoint for other programs: what `longshort export` does."""

from __future__ import annotations

from pathlib import Path

from longshort.data.ends import read_ends
from longshort.data.tokenizer import tokenizer_from_dict
from longshort.hf.chat_template import read_chat_template
from longshort.train import TrainConfig, load_model
from longshort.train.checkpoints.checkpoint import Checkpoint
from longshort.train.checkpoints.tokenizer import beginning_of, checkpoint_tokenizer, tokenizer_folder
from longshort.train.settings.vocabulary import open_problems

FORMATS = ("hf",)


def export_checkpoint(checkpoint: Path, folder: Path, *, format: str = "hf") -> Path:
    """Write the checkpoint's model, and its tokenizer if it has one, to a folder that must not exist yet.

    The tokenizer puts no token before a text if the model was not trained with one.
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    try:
        from longshort.hf import write_folder
    except ImportError as error:
        raise ValueError(str(error)) from None
    model, loaded = load_model(checkpoint)
    config = TrainConfig.from_dict(loaded.state["config"])
    trained, rl = facts_of(config, loaded), config.rl
    if rl.task is not None:  # its tokens are not text
        end = open_problems(rl.task, rl.task_options).stop
        return write_folder(model, None, folder, end=end, trained=trained)
    beside, tokenizer = tokenizer_folder(loaded.path), checkpoint_tokenizer(loaded)
    template, ends = read_chat_template(beside), read_ends(beside, tokenizer)
    if tokenizer.beginning and not beginning_of(loaded):  # whoever opens the folder encodes as its tokenizer.json says
        tokenizer = tokenizer_from_dict(tokenizer.to_dict() | {"post_processor": None})
    return write_folder(model, tokenizer, folder, chat_template=template, ends=ends, trained=trained)


def facts_of(config: TrainConfig, loaded: Checkpoint) -> dict[str, str]:
    """What the checkpoint knows of its training, for the model card; nothing if it was imported and not trained."""
    if not loaded.step:
        return {}
    facts = {"steps": f"{loaded.step:,}"}
    if config.rl.task is None:
        sequences = config.data.batch_size * loaded.step
        facts |= {"tokens seen": f"{sequences * config.length:,}, in sequences of {config.length:,}"}
    kind, rate = config.optimizer.kind, config.optimizer.lr
    return facts | {"optimizer": f"{kind}, learning rate {rate:g}, {config.schedule.kind} schedule"}
