"""Tile shapes: how many rows and columns a program takes at a time, from a small table and never by search at run time.

The table is `tile_table.json`, made by `python -m benchmarks attention --tune` on the GPUs it names; LONGSHORT_TILES
may name another such file, whose entries take precedence. What was not tuned gets shapes that fit a GPU with 99 KB of
shared memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from longshort.ops.options import GLOBAL

KERNELS = ("forward", "grad_q", "grad_kv")
LONG = 1024
"""A head that sees at least this far back is scheduled before the others."""


class TileShape(NamedTuple):
    """How one kernel divides its work: rows are queries, columns are keys."""

    rows: int
    columns: int
    stages: int
    """Depth of the software pipeline over the tiles that pass by."""
    warps: int
    registers: int | None = None
    """Most registers that a thread may use; None leaves it to the compiler."""
    parts: int = 0
    """Number of parts that the walk of a long head is cut into; 0 leaves it to `parts_for`."""


_given: dict[str, TileShape] = {}

Given = tuple[tuple[str, TileShape], ...]


@contextmanager
def use(shapes: dict[str, TileShape]) -> Iterator[None]:
    """Give the named kernels these shapes in the enclosed calls: for the search that makes the table, and for tests."""
    before = dict(_given)
    _given.update(shapes)
    try:
        yield
    finally:
        _given.clear()
        _given.update(before)


def given() -> Given:
    """What `use` gives at present: part of what a prepared launch depends on."""
    return tuple(_given.items()) if _given else ()


def tile_shape(
    kernel: str, dtype: torch.dtype, head_dim: int, windows: tuple[int, ...], length: int, device: torch.device
) -> TileShape:
    """The shape for a call with so many queries and these windows."""
    if kernel in _given:
        return _given[kernel]
    window, local = max((w for w in windows if w < GLOBAL), default=0), max(windows) < LONG
    rows = [] if device.type != "cuda" or dtype == torch.float32 else _table(torch.cuda.get_device_name(device))
    return choose(rows, kernel, head_dim, window, local, length) or untuned(kernel, dtype, head_dim)


def choose(
    rows: list[dict[str, Any]], kernel: str, head_dim: int, window: int, local: bool, length: int
) -> TileShape | None:
    """The entry with the smallest sufficient head dim that is nearest in window and length; None if there is none.

    The window is the widest of the local heads, 0 if there are none.

    Plans without a long head (`local`) use entries of their own, if the table has any.
    """
    fitting = [row for row in rows if row["kernel"] == kernel and head_dim <= row["head_dim"] < 2 * max(head_dim, 32)]
    fitting = [row for row in fitting if row.get("local", False) == local] or fitting
    if not fitting:
        return None

    def distance(row: dict[str, Any]) -> tuple[float, float]:
        apart = abs(math.log2((1 + row["window"]) / (1 + window))) + abs(math.log2(row["length"] / max(1, length)))
        return row["head_dim"], apart

    return TileShape(*min(fitting, key=distance)["shape"])


def untuned(kernel: str, dtype: torch.dtype, head_dim: int) -> TileShape:
    if dtype == torch.float32:
        return TileShape(16, 16, 1, 4) if head_dim > 128 else TileShape(32 if head_dim > 64 else 64, 32, 1, 4)
    if head_dim > 128:
        return TileShape(32 if kernel == "grad_kv" else 64, 32, 2 if kernel == "forward" else 1, 4)
    return TileShape(64, 64, 2, 4)


@lru_cache(maxsize=16)
def _table(device_name: str) -> list[dict[str, Any]]:
    files = [Path(__file__).with_name("tile_table.json")]
    if os.environ.get("LONGSHORT_TILES"):
        files.insert(0, Path(os.environ["LONGSHORT_TILES"]))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]
    return [row for row in rows if row["device"] == device_name]


def parts_for(
    reach: tuple[int, ...],
    *,
    batch: int,
    tiles: int,
    steps: int,
    other: int,
    head_dim: int,
    causal: bool,
    processors: int,
) -> int:
    """Number of parts to cut the walks of long heads into: two if the longest takes more than a fair share of the work.

    More parts never paid off on an H200, nor did two at head dim 128, where a part's sums are large
    (docs/notes/kernel-notes.md).

    Args:
        reach: number of keys that each head sees.
        tiles: number of tiles that a head owns.
        steps: number of tiles of `other` positions in the longest walk of a global head.
        processors: multiprocessors of the GPU; about three programs share one.
    """
    walks = [min(steps, -(-w // other) + 1) for w in reach]
    work = sum(tiles * walk * (0.5 if causal and walk == steps else 1.0) for walk in walks) * batch
    return 2 if head_dim <= 64 and max(walks) >= 16 and max(walks) > 1.2 * work / (3 * processors) else 1
