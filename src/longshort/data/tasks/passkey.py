"""Passkey retrieval (after Mohtashami & Jaggi, arXiv 2305.16300): find a number hidden in filler text.

Sequences are bytes of our own English sentences. The targets are the digits of the number, at the end of the sequence,
each predicted from everything before it; no other position counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longshort.data.tasks.examples import IGNORED
from longshort.data.tasks.recall import generator

VOCAB_SIZE = 256
FILLER = (
    "The river runs past the mill. ",
    "Rain is expected before noon. ",
    "A boat lies at the old pier. ",
    "Nobody has seen the cat today. ",
    "The bread is still warm. ",
    "Two birds sit on the wire. ",
    "The road turns left at the church. ",
    "Someone has left a lamp on. ",
)
HINT, QUESTION = "The pass key is {}. Keep it in mind. ", "What is the pass key? The pass key is "


def check(length: int, digits: int) -> None:
    """Raise if a sequence has no room for the number, the question and some filler."""
    least = len(HINT) - 2 + len(QUESTION) + 2 * digits + 64
    if digits < 1 or length < least:
        raise ValueError(f"length must be at least {max(least, 1)} for a pass key of {digits} digits, got {length}")


def draw(key: str, *, length: int, digits: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One sequence, chosen by the key, as (tokens, targets), both (length,)."""
    source = generator(key)
    number = "".join(str(digit) for digit in source.integers(10, size=digits))
    hint, question = HINT.format(number).encode(), (QUESTION + number).encode()
    room = length + 1 - len(hint) - len(question)
    filler = b""
    while len(filler) < room:
        filler += FILLER[source.integers(len(FILLER))].encode()
    filler = filler[len(filler) - room :]
    starts = [place for place in range(room + 1) if place == 0 or filler.endswith(b". ", 0, place)]
    depth = starts[source.integers(len(starts))]
    row = np.frombuffer(filler[:depth] + hint + filler[depth:] + question, dtype=np.uint8).astype(np.int64)
    targets = np.full(length, IGNORED, dtype=np.int64)
    targets[-digits:] = row[-digits:]
    return row[:-1], targets
