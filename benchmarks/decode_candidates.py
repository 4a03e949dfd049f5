"""Shapes of tile that the search for the decoding kernel's table tries, and the kernels that they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.registry import Shape

_SIZES = ((64, 4, 3), (32, 4, 4), (64, 4, 4), (32, 4, 6), (16, 4, 6), (128, 4, 2), (128, 8, 2))
"""Columns at head dim 64 (as many more or fewer as the dim is smaller or larger), warps, stages: those of four
warps were each among the best at some shape of wider searches."""
_PROGRAMS = (0.75, 1.0, 1.75, 2.0)
"""Of the split heads, a processor: one or two, or as many less those that the other heads take."""
_BY_MATRIX = ((128, 4, 3),)
"""Sizes for the matrix units."""
_VARIANTS = ((0, 0), (0, 1), (1, 1), (2, 1), (3, 1))
"""`early` and `fetch` of a `DecodeShape`."""


def candidates(head_dim: int) -> list[tuple[Any, ...]]:
    """Shapes worth trying at a head dim, as fields of a `DecodeShape`.

    Those by hand have four, and `variants` follow; those by the matrix units have all.

    >>> len(candidates(64)), candidates(128)[0], candidates(128)[-1]
    (32, (32, 4, 3, 0.75), (64, 4, 3, 2.0, 0, 1, True))
    """

    def sized(sizes: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        return list(dict.fromkeys((max(16, c * 64 // head_dim), warps, stages) for c, warps, stages in sizes))

    by_hand = [(*size, programs) for size in sized(_SIZES) for programs in _PROGRAMS]
    return by_hand + [(*size, programs, 0, 1, True) for size in sized(_BY_MATRIX) for programs in _PROGRAMS]


def variants() -> list[tuple[int, int]]:
    """`early` and `fetch` as this GPU can have them, the plain one first."""
    able = torch.cuda.get_device_capability() >= (9, 0)
    return [(early, fetch) for early, fetch in _VARIANTS if able or not early]


def distinct(shapes: Iterable[Shape], processors: int) -> list[tuple[Shape, tuple[Any, ...]]]:
    """Candidates of the shapes, one for each kernel that they need."""
    from longshort.ops.decode.launch import joined_at_a_time, parts_of

    found: dict[tuple[object, ...], tuple[Shape, tuple[Any, ...]]] = {}
    for shape in shapes:
        for numbers in candidates(shape.head_dim):
            columns, programs = numbers[0], numbers[3]
            parts = parts_of(-(-shape.length // columns), round(programs * processors) // shape.batch)
            kernel = (shape.head_dim, *numbers[:3], *numbers[4:], parts > 1, parts > joined_at_a_time(shape.head_dim))
            found.setdefault(kernel, (shape, numbers))
    return list(found.values())
