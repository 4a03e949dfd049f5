"""Text from a checkpoint, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longshort.data.ends import read_ends
from longshort.data.tokenizer import Tokenizer
from longshort.generation import SoftThinking, TextStream
from longshort.model import GPT, lengthened
from longshort.train import load_model
from longshort.train.checkpoints.tokenizer import beginning_of, checkpoint_tokenizer, tokenizer_folder
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

    `thinking` has fields of `SoftThinking`, its `end` as a text; `options` are those of `stream_of`. An imported model
    gets what its tokenizer puts before a text, which ours are not trained with, and stops where its turns end.
    """
    model, loaded = load_model(checkpoint, choose_device(device))
    tokenizer = checkpoint_tokenizer(loaded)
    around: dict[str, Any] = {
        "beginning": beginning_of(loaded),
        "stop": read_ends(tokenizer_folder(loaded.path), tokenizer),
    }
    return stream_of(model, tokenizer, prompt, thinking=thinking, **around, **options)


def stream_of(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    thinking: Mapping[str, Any] | None = None,
    yarn: bool = False,
    **options: Any,
) -> TextStream:
    """The same for a model and its tokenizer; with `yarn`, the model is `lengthened` for the given `context`."""
    if yarn:
        model = lengthened(model, options.pop("context"))
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
