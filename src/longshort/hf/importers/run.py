"""A third-party model as a run at step 0, which generate, evaluate, train and export accept like any other.

The importers read and convert; here the result gets a checkpoint, a config.yaml and a tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import yaml

from longshort.data.ends import read_ends, write_ends
from longshort.data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from longshort.files import new_folder, write_atomically, write_json
from longshort.hf.chat_template import CHAT_TEMPLATE, read_chat_template
from longshort.hf.importers.any_model import from_transformers
from longshort.hf.importers.author import from_author
from longshort.model import GPT
from longshort.stability import SpikeGuard
from longshort.train import TrainConfig
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, save_checkpoint

CONFIG = "config.yaml"


class ImportedRun(NamedTuple):
    """The result of an import."""

    model: GPT
    checkpoint: Path
    config: Path
    """A configuration to continue training from the weights."""
    tokenizer: Tokenizer | None


def import_as_run(
    source: Path,
    out: Path,
    *,
    tokenizer: str | None = None,
    n_heads: int | None = None,
    n_global: int | None = None,
    window: int | None = None,
    span: int | None = None,
    activation: str | None = None,
) -> ImportedRun:
    """Read a model of transformers or a file of the paper's author (.pt) and write it as a run.

    The tokenizer, with its chat template and the tokens that end a turn, is the one beside the source if none is named.
    The other options give what an author's file does not.
    """
    reach = {"n_heads": n_heads, "n_global": n_global, "window": window, "span": span}
    if source.suffix in (".pt", ".pth", ".ckpt"):
        model = from_author(source, **reach, activation=activation or "gelu")
    else:
        given = [name for name, value in (reach | {"activation": activation}).items() if value is not None]
        if given:
            raise ValueError(f"{', '.join(given)} must be left out unless source is an author's .pt file, got {source}")
        model = from_transformers(source)
    folder = source if source.is_dir() else source.parent
    template: str | None = None
    ends: tuple[int, ...] = ()
    if tokenizer is not None:
        found: Tokenizer | None = load_tokenizer(tokenizer)
    elif (folder / TOKENIZER_FILE).is_file():
        found = load_tokenizer(folder)
        template, ends = read_chat_template(folder), read_ends(folder, found)
    else:
        found = None
    saved = save_as_run(model, out, tokenizer=found, chat_template=template, ends=ends, source=source.name)
    return ImportedRun(model, saved, out / CONFIG, found)


def save_as_run(
    model: GPT,
    out: Path,
    *,
    tokenizer: Tokenizer | None = None,
    chat_template: str | None = None,
    ends: tuple[int, ...] = (),
    source: str = "",
) -> Path:
    """Write the model as a run's checkpoint at step 0, with a config.yaml to continue training; return the checkpoint.

    The folder is written completely or not at all; one that is not empty is an error.
    """
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"tokenizer must have no more tokens than the model, {model.config.vocab_size}, got {tokenizer.vocab_size}"
        )
    config = TrainConfig.from_dict({"model": model.config.to_dict(), "run": {"out": str(out)}})
    given = {name: value for name, value in config.to_dict()["model"].items() if value is not None}
    state = {
        "config": config.to_dict(),
        "progress": {},
        "guard": SpikeGuard().state_dict(),
        "vocabulary": None if tokenizer is None else tokenizer.fingerprint,
        "imported": source,
    }
    with new_folder(out) as draft:
        if tokenizer is not None:
            write_json(draft / TOKENIZER_FILE, tokenizer.to_dict())
        if chat_template is not None:
            write_atomically(draft / CHAT_TEMPLATE, chat_template)
        if ends:
            write_ends(draft, ends)
        write_atomically(draft / CONFIG, yaml.safe_dump({"model": given, "run": {"out": str(out)}}, sort_keys=False))
        saved = save_checkpoint(draft / CHECKPOINTS, step=0, model=model.state_dict(), trainer={}, state=state)
    return out / saved.relative_to(draft)
