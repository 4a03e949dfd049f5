"""How a model's chats are written as text: a template beside its tokenizer, which imports and exports carry along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longshort.files import parse_json

CHAT_TEMPLATE = "chat_template.jinja"
"""The file, in transformers' folders and in runs."""


def read_chat_template(folder: Path) -> str | None:
    """The template of a folder that transformers wrote, or of a run; None if it has none.

    Older folders have it in tokenizer_config.json, as text or as a list of templates with names.
    """
    if (folder / CHAT_TEMPLATE).is_file():
        return (folder / CHAT_TEMPLATE).read_text(encoding="utf-8")
    try:
        found: Any = parse_json((folder / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
        if isinstance(found, list):
            found = {one["name"]: one["template"] for one in found}["default"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
