"""A folder that `from_pretrained` reads: weights, configuration and tokenizer, written completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.utils import logging

from longshort.data.tokenizer import Tokenizer
from longshort.files import new_folder
from longshort.hf.card import model_card
from longshort.hf.modeling import LongShortForCausalLM
from longshort.hf.tokenizer import beginning_token, fast_tokenizer
from longshort.model import GPT


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """transformers shows a progress bar for the files it writes even without a terminal."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def write_folder(
    model: GPT,
    tokenizer: Tokenizer | None,
    folder: Path | str,
    *,
    end: int | None = None,
    chat_template: str | None = None,
    ends: Sequence[int] = (),
    trained: Mapping[str, Any] | None = None,
) -> Path:
    """Write what `AutoModelForCausalLM` and `AutoTokenizer` load, and a model card; a folder that exists is an error.

    Without a tokenizer, `end` is the token that ends a sequence; `chat_template` goes with a tokenizer. `generate`
    also stops at the tokens `ends`. `trained` are facts of the training for the card.
    """
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"tokenizer must have no more tokens than the model, {model.config.vocab_size}, got {tokenizer.vocab_size}"
        )
    folder, start = Path(folder), end
    if tokenizer is not None:
        start, end = beginning_token(tokenizer), tokenizer.end_of_document
    shell = LongShortForCausalLM.from_gpt(model, bos_token_id=start, eos_token_id=end, pad_token_id=end)
    if ends:
        shell.generation_config.eos_token_id = list(dict.fromkeys((*ends, end)))
    with new_folder(folder) as draft, full_disk_as_oserror(folder), no_progress_bar():
        shell.save_pretrained(draft)
        card = model_card(model.config, model.n_parameters(), trained=trained)
        (draft / "README.md").write_text(card, encoding="utf-8")
        if tokenizer is not None:
            fast = fast_tokenizer(tokenizer, max_length=model.config.context)
            fast.chat_template = chat_template
            fast.save_pretrained(draft)
    return folder


@contextmanager
def full_disk_as_oserror(folder: Path) -> Iterator[None]:
    """On a full disk safetensors raises an error of its own, and tokenizers a bare Exception."""
    try:
        yield
    except Exception as error:
        if type(error) not in (SafetensorError, Exception):
            raise
        raise OSError(f"cannot write {folder}: {error}") from None
