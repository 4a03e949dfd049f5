"""Tokenizes on several processes; results come in the order of the text, whatever the number of processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshort.data.corpus import HubDataset, TextFile
from longshort.data.pools import spawned
from longshort.data.split import Assigned
from longshort.data.tokenizer import Tokenizer, tokenizer_from_dict

_TASK_CHARACTERS = 1 << 18
_TASK_PIECES = 1024
_AHEAD = 3
"""Tasks in flight for each process: enough to keep it busy, few enough to bound the memory."""

_of_this_process: Tokenizer | None = None


class Encoded(NamedTuple):
    """The tokens of one task, for one split."""

    split: str
    ids: NDArray[Any]
    read: int


def encode_in_order(pieces: Iterable[Assigned], tokenizer: Tokenizer, workers: int) -> Generator[Encoded, None, None]:
    """Tokenize pieces on `workers` processes (1 means this one), with an end token after each document."""
    tasks = _tasks(pieces)
    if workers == 1:
        for task in tasks:
            yield from _encode(task, tokenizer)
        return
    in_flight: deque[Future[list[Encoded]]] = deque()
    with spawned(workers, "tokenizing", _start, tokenizer.to_dict()) as pool:
        for task in tasks:
            in_flight.append(pool.submit(_encode_here, task))
            if len(in_flight) >= workers * _AHEAD:
                yield from in_flight.popleft().result()
        while in_flight:
            yield from in_flight.popleft().result()


def count_documents(parts: Sequence[TextFile | HubDataset], workers: int) -> Generator[int, None, None]:
    """The number of documents of each part of a corpus, in order, counted by `workers` processes."""
    if workers == 1 or len(parts) == 1:
        yield from map(_documents_of, parts)
        return
    with spawned(min(workers, len(parts)), "tokenizing") as pool:
        # Single files unless there are very many: files differ in size.
        yield from pool.map(_documents_of, parts, chunksize=1 + len(parts) // (64 * workers))


def _documents_of(part: TextFile | HubDataset) -> int:
    return sum(piece.ends_document for piece in part.pieces())


def _tasks(pieces: Iterable[Assigned]) -> Iterator[list[Assigned]]:
    task: list[Assigned] = []
    size = 0
    for piece in pieces:
        task.append(piece)
        size += len(piece.text)
        if size >= _TASK_CHARACTERS or len(task) >= _TASK_PIECES:
            yield task
            task, size = [], 0
    if task:
        yield task


def _encode(task: list[Assigned], tokenizer: Tokenizer) -> list[Encoded]:
    parts: dict[str, list[NDArray[Any]]] = {}
    for piece in task:
        ids = parts.setdefault(piece.split, [])
        ids.append(tokenizer.encode(piece.text))
        if piece.ends_document:
            ids.append(np.array([tokenizer.end_of_document], dtype=ids[-1].dtype))
    return [Encoded(split, np.concatenate(ids), task[-1].read) for split, ids in parts.items()]


def _encode_here(task: list[Assigned]) -> list[Encoded]:
    assert _of_this_process is not None
    return _encode(task, _of_this_process)


def _start(tokenizer: dict[str, Any]) -> None:
    global _of_this_process
    # The processes already run in parallel.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _of_this_process = tokenizer_from_dict(tokenizer)
