"""Where each position stands in its document: the positions of a sequence that share a segment, in any order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """For each position of (B, S) segments, padding included, whose equal ids count as a document too."""

    rank: Tensor
    """How many earlier positions its document has."""
    start: Tensor
    """The first position of its document."""
    enough: Tensor
    """One past the position that completes the first keys of its document, or past its end."""
    end: Tensor
    """One past the last position of its document."""


def documents(segments: Tensor, first: int) -> Documents:
    """Of (B, S) integers; each field has their shape and is int64.

    >>> rank, start, enough, end = documents(torch.tensor([[5, 5, 2, 5, 2]]), 2)
    >>> rank.tolist(), start.tolist(), enough.tolist(), end.tolist()
    ([[0, 1, 0, 2, 1]], [[0, 0, 2, 0, 2]], [[2, 2, 5, 2, 5]], [[4, 4, 5, 4, 5]])
    """
    ids, order = segments.sort(dim=1, stable=True)
    places = torch.arange(segments.shape[1], device=segments.device).expand_as(order)
    changes = torch.ones_like(ids, dtype=torch.bool)
    changes[:, 1:] = ids[:, 1:] != ids[:, :-1]
    begin = torch.where(changes, places, 0).cummax(1).values
    last = torch.where(changes.roll(-1, 1), places, segments.shape[1]).flip(1).cummin(1).values.flip(1)
    full = torch.minimum(begin + (first - 1), last).clamp(min=0)
    found = (places - begin, order.gather(1, begin), order.gather(1, full) + 1, order.gather(1, last) + 1)
    return Documents(*(torch.empty_like(order).scatter_(1, order, x) for x in found))


def ranks(segments: Tensor) -> Tensor:
    """(B, S): how many earlier positions of its own segment each position has."""
    return documents(segments, 1).rank


def starts(segments: Tensor, held: Tensor, new: int) -> Tensor:
    """(B, T): where the documents of the T positions from `held` (1,) on begin; later segments may be anything.

    >>> starts(torch.tensor([[-1, 4, 4, 7, 9]]), torch.tensor([2]), 2)
    tensor([[1, 3]])
    """
    places = torch.arange(segments.shape[1], device=segments.device)
    ours = segments.index_select(1, held + places[:new])
    return torch.where(segments[:, None] == ours[:, :, None], places, segments.shape[1]).amin(-1)
