"""Tile shapes: how many rows and columns a program takes at a time, chosen by a small table and never at run time."""

from __future__ import annotations

from typing import NamedTuple

import torch


class TileShape(NamedTuple):
    """How one kernel cuts its work: rows are queries, columns keys; long and short heads have shapes of their own."""

    long_rows: int
    long_columns: int
    long_stages: int
    """Depth of the software pipeline over the tiles of a long head."""
    short_rows: int
    short_columns: int
    short_stages: int
    run: int
    """Tiles that one program of a short head owns."""
    warps: int
    registers: int | None = None
    """The most that a thread may have; None leaves it to the compiler."""
    most_tiles: int = 6
    """A head whose window spans more tiles than this is long: its tiles are a loop, not unrolled."""


_override: dict[str, TileShape] = {}


def tile_shape(kernel: str, head_dim: int, dtype: torch.dtype) -> TileShape:
    if kernel in _override:
        return _override[kernel]
    if dtype == torch.float32:
        return TileShape(32, 32, 1, 32, 32, 1, 4, 4) if head_dim > 64 else TileShape(64, 32, 1, 64, 32, 1, 4, 4)
    return TileShape(64, 64, 2, 64, 64, 1, 4, 4)
