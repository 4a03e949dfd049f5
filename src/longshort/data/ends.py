"""The tokens that end a model's texts beside the end of a document: a chat model ends its turns with one of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longshort.data.tokenizer import Tokenizer
from longshort.files import parse_json, write_json
from longshort.numeric import is_integral

GENERATION = "generation_config.json"
"""The file, in transformers' folders and in runs."""


def read_ends(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Those that a folder of transformers or a run names; none where it has no such file, or one of another kind."""
    try:
        found: Any = parse_json((folder / GENERATION).read_text(encoding="utf-8"))["eos_token_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    tokens = found if isinstance(found, list) else [found]
    known = [token for token in tokens if is_integral(token) and 0 <= token < tokenizer.vocab_size]
    return tuple(token for token in dict.fromkeys(known) if token != tokenizer.end_of_document)


def write_ends(folder: Path, ends: tuple[int, ...]) -> None:
    """Note them in a run's folder."""
    write_json(folder / GENERATION, {"eos_token_id": list(ends)})
