"""What a user may have meant by a name that does not exist. Below everything that reads names from a user."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


def closest(word: object, known: Collection[str], cutoff: float = 0.75) -> str | None:
    """The known name most like this word; None where none is close.

    >>> closest("n_layer", ["n_layers", "n_heads"]), closest("colour", ["n_layers", "n_heads"])
    ('n_layers', None)
    """
    return next(iter(difflib.get_close_matches(str(word)[:100], list(known), n=1, cutoff=cutoff)), None)


def check_fields(record: str, given: Iterable[object], known: Collection[str]) -> None:
    """Raise on the first field that the record does not have."""
    for name in given:
        if name not in known:
            near = closest(name, known)
            hint = f"did you mean {near}?" if near else f"its fields are {', '.join(known)}"
            raise ValueError(f"{record} has no field {name!r}; {hint}")
