"""Sequences to measure on: those of a given text, random tokens that repeat, and needles in filler sentences.

Every sequence begins as the tokenizer begins a text: with its token for that, where it has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from longshort.data.corpus import Corpus, open_corpus, standard_library_corpus
from longshort.data.tasks.retrieval import Retrieval

Asked = tuple[Tensor, list[int], list[int]]
"""Tokens (T,), the places of the queries, and the place of the key that each should find."""


def opening(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts before a text."""
    start = tokenizer.bos_token_id
    return [start] if start is not None and tokenizer("a").input_ids[:1] == [start] else []


def text_sequences(tokenizer: Any, text: Path | None, *, rows: int, length: int, least: int = 1) -> tuple[Tensor, str]:
    """At most `rows` sequences (B, T) from the start of a text, and its name.

    Without a text, that of Python's standard library is taken: code, which every machine has.
    """
    corpus = standard_library_corpus()["train"] if text is None else open_corpus([text])
    first = opening(tokenizer)
    room = length - len(first)
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *_tokens(tokenizer, corpus, rows * room)])
    found = min(rows, len(tokens) // room)
    if found < least:
        raise ValueError(
            f"--text must have at least {least} sequences of {length} tokens, got {len(tokens)} tokens in {text}"
        )
    cut = torch.from_numpy(tokens[: found * room]).view(found, room)
    start = torch.tensor(first, dtype=torch.long).expand(found, len(first))
    return torch.cat((start, cut), dim=1), corpus.description


def _tokens(tokenizer: Any, corpus: Corpus, enough: int) -> Iterator[NDArray[np.int64]]:
    """Tokens of the text piece by piece, the end of each document after it, until there are enough."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for piece in corpus.pieces():
        ids = tokenizer(piece.text, add_special_tokens=False, verbose=False).input_ids
        yield np.array(ids + end * piece.ends_document, dtype=np.int64)
        enough -= len(ids) + len(end) * piece.ends_document
        if enough <= 0:
            return


def repeated(tokenizer: Any, *, rows: int, length: int, seed: int = 0) -> list[Asked]:
    """Random tokens twice: an induction head at a token of the second half looks at what followed it in the first."""
    source = torch.Generator().manual_seed(seed)
    plain = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    first = torch.tensor(opening(tokenizer), dtype=torch.long)
    half = (length - len(first)) // 2
    found: list[Asked] = []
    for _ in range(rows):
        drawn = plain[torch.randint(len(plain), (half,), generator=source)]
        queries = list(range(len(first) + half, len(first) + 2 * half - 1))
        found.append((torch.cat((first, drawn, drawn)), queries, [query - half + 1 for query in queries]))
    return found


def needles(tokenizer: Any, *, rows: int, length: int, seed: int = 0) -> list[Asked]:
    """A number said once in filler sentences and asked for at the end: where a token of it is written, a retrieval
    head looks at that token (arXiv 2404.15574). Empty where the length has no room for it."""
    retrieval = Retrieval(_Encoding(tokenizer), beginning=opening(tokenizer))
    if length < retrieval.least("needle-noise"):
        return []
    found: list[Asked] = []
    for number in range(rows):
        tokens, targets = retrieval.draw("needle-noise", f"inspect/{seed}/{number}", length=length)
        asked = np.flatnonzero(targets >= 0)
        said = _place_of(targets[asked], tokens)
        found.append((torch.from_numpy(tokens), asked.tolist(), list(range(said, said + len(asked)))))
    return found


def _place_of(answer: NDArray[np.int64], tokens: NDArray[np.int64]) -> int:
    """Where the answer is first said."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(answer))
    return int(np.flatnonzero((windows == answer).all(1))[0])


class _Encoding:
    """What `Retrieval` needs of a tokenizer to make needles in noise."""

    beginning = ()

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size, self.fingerprint, self.end_of_document = len(tokenizer), "", -1

    def encode(self, text: str) -> NDArray[Any]:
        return np.array(self._tokenizer(text, add_special_tokens=False).input_ids, dtype=np.int64)

    def decode(self, ids: Any) -> str:
        return str(self._tokenizer.decode(ids))

    def to_dict(self) -> dict[str, Any]:
        raise NotImplementedError
