"""The first keys of each document, which streaming heads see besides their windows: gathered, a few columns for all.

Without segments they are the first columns of the matrix. With segments, those of all documents of a sequence stand
side by side, and the mask leaves each row its own document's.

Shapes: N batch x heads of one group, b its sequences, S keys, F gathered keys, R rows of a tile, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longshort.ops.blocked.groups import Group
from longshort.ops.documents import ranks


@dataclass(frozen=True)
class FirstKeys:
    """The first keys that the heads of a group see."""

    group: Group
    positions: Tensor
    """(1 or b, F)."""
    real: Tensor | None
    """(b, F): sequences with fewer such keys than others are filled up with keys that nobody sees. None: all are."""

    @classmethod
    def of(cls, group: Group) -> FirstKeys:
        if group.key_ids is None:
            return cls(group, torch.arange(group.first, device=group.q.device)[None], None)
        low = (ranks(group.key_ids) < group.first) & (group.key_ids >= 0)
        most = int(low.sum(1).max())
        positions = low.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return cls(group, positions, low.gather(1, positions))

    def of_keys(self, x: Tensor) -> Tensor:
        """(N, 1, F, D) of (N, S, D)."""
        if self.real is None:
            return x[:, None, : self.group.first]
        return x.gather(1, self._index(x))[:, None]

    def add_to(self, total: Tensor, part: Tensor) -> None:
        """Add (N, 1, F, D), zero for what is not real, to (N, S, D)."""
        if self.real is None:
            total[:, : self.group.first].add_(part[:, 0])
        else:
            total.scatter_add_(1, self._index(total), part[:, 0])

    def tiles(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows, then (1 or N, 1, R, F): which first keys they see outside of their windows, and the distances."""
        group, positions = self.group, self.positions[:, None]
        past, count = group.n_keys - group.n_queries, positions.shape[2]
        start = max(0, group.reach.back + 1 - past) if group.options.causal else 0
        step = max(32, group.dense_elements // max(1, count))
        for first in range(start, group.n_queries if count else 0, step):
            rows = slice(first, min(first + step, group.n_queries))
            t = torch.arange(rows.start + past, rows.stop + past, device=positions.device)
            offset = t[:, None] - positions
            seen = offset > group.reach.back
            if not group.options.causal:
                seen = seen | (offset < -group.reach.ahead)
            if self.real is not None and group.query_ids is not None and group.key_ids is not None:
                theirs = group.key_ids.gather(1, self.positions).masked_fill(~self.real, -1)[:, None]
                ours = group.query_ids[:, rows, None]
                seen = seen & (ours == theirs) & (ours >= 0)
            yield rows, self._per_head(seen), self._per_head(offset.abs())

    def _index(self, x: Tensor) -> Tensor:
        return self._per_head(self.positions)[:, 0, :, None].expand(-1, -1, x.shape[2])

    def _per_head(self, x: Tensor) -> Tensor:
        """(1, 1, ...) or (N, 1, ...) of (1, ...) or (b, ...)."""
        each = x if len(x) == 1 and self.real is None else x.repeat_interleave(self.group.q.shape[0] // len(x), dim=0)
        return each[:, None]
