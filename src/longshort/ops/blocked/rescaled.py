"""LaS's decay as a rescaling of queries and keys, so that PyTorch's flash attention can compute it on CPUs.

For t >= j the factor of a logit is a product, exp(-decay (t - j)) = exp(-decay (t - c)) exp(-decay (c - j)) for any c,
so rescaled queries and keys give the decayed logits. For t < j the sign is reversed. So the lower half of two-sided
attention is one causal call, and the upper half, without the diagonal, another one on the mirrored row; the two are
merged by log-sum-exp. With c in the middle of a row, the factors at its ends are exp(-+ SPREAD / 2): where decay times
length is larger than SPREAD (`steep`), the dense engine is used instead.

Shapes: N batch x heads of one group, T queries, S keys, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longshort.ops.blocked import fused
from longshort.ops.blocked.groups import Group
from longshort.ops.blocked.tiles import Reach
from longshort.ops.scores import decay_factor


@dataclass(frozen=True)
class Side:
    """The keys that each query sees up to its own position, or (mirrored) after it."""

    group: Group
    """Causal and without decay."""
    rows: slice
    columns: slice
    row_factors: Tensor
    column_factors: Tensor
    """(N, rows or columns, 1): the factors of queries and keys, in the order of the row itself."""
    mirrored: bool

    def turned(self, x: Tensor) -> Tensor:
        """Convert from the order of the row to that of the group, or back."""
        return _turned(x, self.mirrored)


def _turned(x: Tensor, mirrored: bool) -> Tensor:
    return x.flip(1) if mirrored else x


def serves(group: Group) -> bool:
    if group.decays_N is None or group.steep or group.options.softcap is not None or group.q.device.type != "cpu":
        return False
    return fused.serves(group.q, scale=group.scale, masked=True)


def sides(group: Group) -> Iterator[Side]:
    """The keys up to each query and, in two-sided attention, those after it."""
    queries, keys = group.n_queries, group.n_keys
    past = keys - queries
    yield _side(group, slice(0, queries), slice(0, keys), Reach(group.reach.back, 0), mirrored=False)
    if group.reach.ahead > 0 and queries > 1:
        reach = Reach(group.reach.ahead - 1, 0)
        yield _side(group, slice(0, queries - 1), slice(past + 1, keys), reach, mirrored=True)


def _side(group: Group, rows: slice, columns: slice, reach: Reach, *, mirrored: bool) -> Side:
    """`rows` of the queries against `columns` of the keys, both in the order in which the group is causal."""
    assert group.decays_N is not None
    position = torch.arange(group.n_keys, dtype=torch.float64) - (group.n_keys - 1) / 2
    along = (-position if mirrored else position)[:, None]
    factors = [decay_factor(group.decays_N[:, :, 0], way, group.q.dtype) for way in (along, -along)]
    row_factors = factors[0][:, group.n_keys - group.n_queries :][:, rows]
    column_factors = factors[1][:, columns]
    ids = group.query_ids, group.key_ids
    causal = replace(
        group,
        options=group.options._replace(causal=True),
        reach=reach,
        q=_turned(group.q[:, rows] * row_factors, mirrored),
        k=_turned(group.k[:, columns] * column_factors, mirrored),
        v=_turned(group.v[:, columns], mirrored),
        decays_N=None,
        query_ids=None if ids[0] is None else _turned(ids[0][:, rows], mirrored),
        key_ids=None if ids[1] is None else _turned(ids[1][:, columns], mirrored),
        apart=int(mirrored),
        blind_rows=mirrored and ids[0] is not None,
        rescaled=True,
    )
    return Side(causal, rows, columns, row_factors, column_factors, mirrored)
