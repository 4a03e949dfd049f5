"""A causal language model of transformers and its tokenizer, from a folder on disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from longshort.files import is_of_transformers
from longshort.hf.folder import no_progress_bar
from longshort.hf.importers.layout import listed


class OpenedFolder(NamedTuple):
    """What a folder holds."""

    folder: Path
    model: PreTrainedModel
    """In evaluation mode; in fp32 on a CPU, as it was saved on a GPU."""
    tokenizer: Any
    dtype: torch.dtype
    """That of the weights in the folder."""

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that the model was made for."""
        return int(getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)


def open_folder(folder: Path, device: torch.device, *, trained: bool = False) -> OpenedFolder:
    """Read a model and its tokenizer, as the hub's or `save_pretrained`'s files hold them; nothing is downloaded.

    A model that is to be trained is in fp32 on a GPU too.
    """
    if not is_of_transformers(folder):
        raise ValueError(
            f"MODEL must be a folder with a config.json that names a model_type, as on the Hugging Face hub, got "
            f"{str(folder)!r} (a run: longshort export it first)"
        )
    tokenizer = read_pretrained(AutoTokenizer, folder, "tokenizer")
    model, info = read_pretrained(
        AutoModelForCausalLM, folder, "language model", dtype="auto", output_loading_info=True
    )
    for what in ("missing_keys", "mismatched_keys"):
        if names := info[what]:
            raise ValueError(
                f"{folder}: weights do not fit the model, {what.replace('_', ' ')}: {listed(map(str, names))}"
            )
    rows, ids = model.get_input_embeddings().weight.shape[0], len(tokenizer)
    if ids > rows:
        raise ValueError(f"{folder}: the tokenizer must have no more tokens than the model, {rows}, got {ids}")
    saved = model.dtype
    model = model.float() if trained or device.type == "cpu" else model
    return OpenedFolder(folder, model.to(device).eval(), tokenizer, saved)


def read_pretrained(kind: Any, folder: Path, what: str, **options: Any) -> Any:
    """`from_pretrained` of an Auto class, on this disk and without a word; what goes wrong is one ValueError."""
    try:
        with quiet():
            return kind.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:  # transformers fails in many ways
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{folder} must hold a {what} that transformers can read, got: {reason}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without progress bars and without warnings."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with no_progress_bar():
            yield
    finally:
        logging.set_verbosity(level)
