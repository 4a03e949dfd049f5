"""Generates examples on several processes, the same whatever their number, and caches them on disk.

An example depends only on its key (task, seed, split, number). Duplicates are dropped in the order of the numbers, test
before validation before training: no example of one split is in another, and the test set stays the same when more
training examples are asked for. The cache is a folder of .npy files, either complete or absent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from longshort.data.corpus import SPLITS
from longshort.data.default import cache_root
from longshort.data.errors import DataError
from longshort.data.pools import spawned
from longshort.data.tasks.examples import Examples
from longshort.files import alone_in, new_folder, write_json

FORMAT = 1
"""Part of every fingerprint: raise it when a generator draws differently."""
_CHUNK = 64
_AHEAD = 64
"""Chunks in flight: enough to keep many processes busy, few enough to bound the memory."""
_SMALL = 512
"""Fewer examples than this are not worth starting processes for."""
_PATIENCE = 10_000
"""Consecutive duplicates after which the search for another example is given up."""

Draw = Callable[..., tuple[Any, Any]]
DrawProgress = Callable[[int, int], None]


def generated(
    name: str,
    draw: Draw,
    options: Mapping[str, Any],
    *,
    counts: Mapping[str, int],
    seed: int,
    vocab_size: int,
    workers: int | None = None,
    cache: Path | None = None,
    progress: DrawProgress | None = None,
    made_from: Mapping[str, Any] | None = None,
    distinct: bool = True,
) -> tuple[dict[str, Examples], str]:
    """The splits of a generated task, generated or read from the cache, and their fingerprint.

    `draw(key, **options)` must be a module-level function, so that other processes can import it.

    Args:
        made_from: What the examples depend on, if not the options themselves: the contents of files that these name.
        distinct: Drop examples that repeat another. If not, example i of a split is that of the number i.
    """
    made_of = dict(options if made_from is None else made_from)
    recipe = {"format": FORMAT, "task": name, "seed": seed, "options": made_of, "counts": dict(counts)}
    fingerprint = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    folder = (cache or cache_root()) / "tasks" / f"{name}-{fingerprint[:16]}"
    if not folder.is_dir():
        with alone_in(folder.parents[1] / "locks" / folder.name, wait=True):  # torchrun starts several that want it
            if not folder.is_dir():
                splits = _drawn(name, draw, options, counts, seed, vocab_size, workers, progress, distinct)
                _keep(folder, splits, recipe)
    return {split: _read(folder, split) for split in SPLITS}, fingerprint


def _drawn(
    name: str,
    draw: Draw,
    options: Mapping[str, Any],
    counts: Mapping[str, int],
    seed: int,
    vocab_size: int,
    workers: int | None,
    progress: DrawProgress | None,
    distinct: bool,
) -> dict[str, Examples]:
    total, done = sum(counts.values()), 0
    if workers is None:
        workers = 1 if total < _SMALL else os.cpu_count() or 1
    seen: set[bytes] = set()
    splits = {}
    pooled = spawned(workers, "generating") if workers > 1 else contextlib.nullcontext()
    with pooled as pool:
        for split in reversed(SPLITS):
            rows: list[tuple[Any, Any]] = []
            candidates = _in_order(functools.partial(draw, **options), f"{name}/{seed}/{split}", pool)
            for row in _distinct(candidates, seen, name=name) if distinct else candidates:
                rows.append(row)
                done += 1
                if progress is not None and done % 1000 == 0:
                    progress(done, total)
                if len(rows) == counts[split]:
                    break
            splits[split] = Examples.of_rows(rows, vocab_size=vocab_size)
    return splits


def _distinct(candidates: Iterator[tuple[Any, Any]], seen: set[bytes], *, name: str) -> Iterator[tuple[Any, Any]]:
    """The candidates whose tokens were not seen before."""
    doubles = 0
    for tokens, answer in candidates:
        row = np.asarray(tokens, dtype=np.uint16)
        digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            doubles = 0
            yield row, answer
            continue
        doubles += 1
        if doubles == _PATIENCE:
            raise DataError(
                f"{name} has too few distinct examples: after {len(seen)}, {doubles} more attempts gave none; "
                "ask for fewer"
            )


def _in_order(draw: Draw, prefix: str, pool: ProcessPoolExecutor | None) -> Iterator[tuple[Any, Any]]:
    """Examples number 0, 1, 2, ... of a prefix, endlessly."""
    if pool is None:
        for number in itertools.count():
            yield draw(f"{prefix}/{number}")
        return
    ahead: deque[Future[list[tuple[Any, Any]]]] = deque()
    try:
        for first in itertools.count(0, _CHUNK):
            ahead.append(pool.submit(_chunk, draw, prefix, first))
            if len(ahead) >= _AHEAD:
                yield from ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()


def _chunk(draw: Draw, prefix: str, first: int) -> list[tuple[Any, Any]]:
    return [draw(f"{prefix}/{number}") for number in range(first, first + _CHUNK)]


def _keep(folder: Path, splits: Mapping[str, Examples], made_from: Mapping[str, Any]) -> None:
    try:
        with new_folder(folder) as draft:
            write_json(draft / "task.json", made_from)
            for split, examples in splits.items():
                for part in ("tokens", "offsets", "labels", "targets"):
                    values = getattr(examples, part)
                    if values is not None:
                        np.save(draft / f"{split}-{part}.npy", values, allow_pickle=False)
    except (OSError, ValueError):
        if not folder.is_dir():  # without locks another process may have been faster; its folder holds the same
            raise


def _read(folder: Path, split: str) -> Examples:
    parts: dict[str, Any] = {}
    try:
        for part in ("tokens", "offsets", "labels", "targets"):
            path = folder / f"{split}-{part}.npy"
            if path.is_file():
                # Memory-mapped pages are shared by every run on the machine.
                parts[part] = np.load(path, mmap_mode="r", allow_pickle=False)
        return Examples(**parts)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder}: damaged ({error}); remove the folder to generate it again") from None
