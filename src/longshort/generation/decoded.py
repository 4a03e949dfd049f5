"""What tokens write where others stand before them: the text of a token may depend on those."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longshort.data.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What bytes that are no whole character are decoded to."""
MOST_BYTES = 4
"""Of a character, in UTF-8."""


def has_text(tokenizer: Tokenizer, token: int) -> bool:
    """Whether the token writes anything, as the end of a document and other special tokens do not."""
    # Twice, since the first token of a text loses its space in vocabularies that mark the beginnings of words.
    return bool(tokenizer.decode([token, token]))


def end_of_text(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The last tokens that write something, as many as the text of those that follow depends on.

    Vocabularies that mark the beginnings of words decode the first token without its space, and those that write rare
    characters byte by byte spoil all neighbouring ones where such a text begins within a character.
    """
    known = (token for token in reversed(tokens) if token < tokenizer.vocab_size)
    last = list(islice((token for token in known if has_text(tokenizer, token)), MOST_BYTES))[::-1]
    ends = [last[-count:] for count in range(1, len(last) + 1)]
    return next((end for end in ends if REPLACEMENT not in tokenizer.decode(end)), last[-1:])


def text_after(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of tokens that follow those `before`, which are from `end_of_text`."""
    return tokenizer.decode([*before, *tokens])[len(tokenizer.decode(before)) :]
