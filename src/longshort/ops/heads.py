"""Heads of a tensor by their numbers: as a slice, which gives a view, where they are neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Heads = slice | list[int]


def as_slice(heads: Sequence[int]) -> Heads:
    """A slice where the heads are neighbours.

    >>> as_slice([2, 3, 4]), as_slice([2, 4])
    (slice(2, 5, None), [2, 4])
    """
    first, last = heads[0], heads[-1]
    members = list(heads)
    return slice(first, last + 1) if members == list(range(first, last + 1)) else members


def of_heads(x: Tensor, heads: Sequence[int]) -> Tensor:
    """These heads of x (N, heads, ...); a view where they are neighbours."""
    return x[:, as_slice(heads)]
