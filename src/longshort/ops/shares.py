"""Which heads of a sharded sequence need what from other ranks, what that costs, and when it cannot be had.

Pure numbers: `sharded` does the work, and cost models can ask here without a process group.

Shapes: N ranks, T positions of each, D head dimension.
"""

from __future__ import annotations

from typing import NamedTuple

from longshort.heads import HeadPlan
from longshort.ops.smoothing import Smoothing, held_heads


class Shard(NamedTuple):
    """Where the positions of one rank stand: the ranks hold T neighbouring positions each, in order."""

    rank: int
    size: int
    length: int
    """T."""

    @property
    def start(self) -> int:
        """The position of its first one in the sequence."""
        return self.rank * self.length

    @property
    def total(self) -> int:
        """Positions of the whole sequence."""
        return self.size * self.length

    @property
    def is_last(self) -> bool:
        """Whether no rank comes after it."""
        return self.rank == self.size - 1

    @property
    def mirror(self) -> int:
        """The rank with which it shares the work of global heads: each takes over the other's second half.

        A causal row at position t costs t, so that a first half at one end and a second half at the other cost as
        much as any other such pair (zig-zag), and each rank sends no more than one half, to one rank.
        """
        return self.size - 1 - self.rank

    @property
    def halves(self) -> tuple[int, int]:
        """Lengths of the half that stays and of the one that the mirror takes over."""
        return self.length - self.length // 2, self.length // 2

    @property
    def ends(self) -> tuple[int, int]:
        """How many keys there are up to the end of its first half, and of its mirror's second one."""
        return self.start + self.halves[0], (self.mirror + 1) * self.length


class Piece(NamedTuple):
    """Local KV heads of equal reach: what they need of the keys before those of a rank."""

    heads: list[int]
    """Indices into `Roles.near_kv`."""
    back: int
    """Keys from the end of the rank before."""
    first: int
    """Keys from the start of the sequence."""


class Roles(NamedTuple):
    """Query and KV heads by what they need from other ranks."""

    far_kv: list[int]
    """KV heads with a global query head: all ranks get all of their keys and values."""
    near_kv: list[int]
    """The others, which get a halo."""
    far: list[int]
    """Global query heads: half of their queries go to the mirror."""
    inner: list[int]
    """Local query heads that share a KV head with a global one."""
    near: list[int]
    """The other local query heads."""
    pieces: list[Piece]
    """What `near_kv` need."""

    @classmethod
    def of(cls, plan: HeadPlan, n_kv_heads: int, total: int) -> Roles:
        """The roles of heads in a sequence of `total` positions; a window as long is the same as none.

        >>> roles = Roles.of(HeadPlan(windows=(None, 8, 4, 4)), 2, 100)
        >>> roles.far, roles.inner, roles.near, roles.pieces
        ([0], [1], [2, 3], [Piece(heads=[0], back=3, first=0)])
        """
        group = plan.n_heads // n_kv_heads
        everywhere = [window is None or window >= total for window in plan.windows]
        far_kv = sorted({head // group for head in range(plan.n_heads) if everywhere[head]})
        near_kv = [head for head in range(n_kv_heads) if head not in far_kv]
        far = [head for head in range(plan.n_heads) if everywhere[head]]
        local = [head for head in range(plan.n_heads) if not everywhere[head]]
        inner = [head for head in local if head // group in far_kv]
        near = [head for head in local if head // group not in far_kv]
        reaches, firsts = plan.kv_windows(n_kv_heads), plan.kv_firsts(n_kv_heads)
        alike: dict[tuple[int, int], list[int]] = {}
        for index, head in enumerate(near_kv):
            alike.setdefault(((reaches[head] or 1) - 1, firsts[head]), []).append(index)
        pieces = [Piece(heads, back, first) for (back, first), heads in alike.items()]
        return cls(far_kv, near_kv, far, inner, near, pieces)

    @property
    def back(self) -> int:
        """Keys of the rank before that the farthest reaching local head needs."""
        return max([0, *(piece.back for piece in self.pieces)])

    @property
    def first(self) -> int:
        """Keys of the sequence's start that a streaming head needs."""
        return max([0, *(piece.first for piece in self.pieces)])


def largest_group(plan: HeadPlan, n_kv_heads: int, total: int, smoothing: Smoothing | None = None) -> int:
    """Over how many ranks a sequence of `total` positions can be sharded: the largest divisor that leaves halos whole.

    >>> largest_group(HeadPlan.long_short(n_heads=4, n_global=1, window=128), 4, 1024)
    8
    """
    most = total // max(_needed(plan, n_kv_heads, total, smoothing), 1)
    return next(size for size in range(max(most, 1), 0, -1) if total % size == 0)


def check_shard(plan: HeadPlan, n_kv_heads: int, shard: Shard, smoothing: Smoothing | None = None) -> None:
    """Raise if a head reaches past the neighbour of a rank."""
    needed = _needed(plan, n_kv_heads, shard.total, smoothing)
    if shard.size > 1 and needed > shard.length:
        fits = largest_group(plan, n_kv_heads, shard.total, smoothing)
        raise ValueError(
            f"group must have at most {fits} ranks for {shard.total} positions, got {shard.size}: local heads (and "
            f"smoothing) need {needed} keys of the rank before, which has {shard.length}; use a smaller cp, longer "
            "sequences or smaller windows"
        )


def check_firsts(
    plan: HeadPlan, n_kv_heads: int, total: int, smoothing: Smoothing | None = None, *, segments: bool
) -> None:
    """Raise where the first keys that streaming heads see do not lie, or do not stand, where rank 0 has them."""
    near = Roles.of(plan, held_heads(plan, n_kv_heads, smoothing), total).near
    if plan.firsts is None or not any(plan.firsts[head] for head in near):
        return
    if segments:
        raise ValueError(
            "segments must be None for streaming heads (plan.firsts) in a group: the first keys of a segment may lie "
            "on any rank, and only those of the sequence are sent"
        )
    for name in ("decays", "slopes"):
        rates = getattr(plan, name)
        if rates is not None and any(rates[head] and plan.firsts[head] for head in near):
            raise ValueError(
                f"plan.{name} must be 0 for streaming heads (plan.firsts) in a group: the first keys are sent without "
                "their distance"
            )


def bytes_sent(
    plan: HeadPlan,
    n_kv_heads: int,
    *,
    length: int,
    size: int,
    head_dim: int,
    itemsize: int,
    smoothing: Smoothing | None = None,
) -> dict[str, float]:
    """Bytes that one rank sends per sequence and layer in the forward pass, by kind; the backward pass sends as many.

    Of a rank that sends most: the last sends no halo, and the middle one of an odd number keeps its queries. Statistics
    and segments are left out.

    >>> plan = HeadPlan.long_short(n_heads=32, n_global=1, window=128)
    >>> sent = bytes_sent(plan, 32, length=131072, size=8, head_dim=128, itemsize=2)
    >>> {kind: round(count / 1e6, 1) for kind, count in sent.items()}
    {'halo': 2.0, 'gather': 58.7, 'queries': 4.2, 'first': 0.0, 'smoothing': 0.0}
    """
    shard = Shard(0, size, length // size)
    roles, row = Roles.of(plan, held_heads(plan, n_kv_heads, smoothing), length), head_dim * itemsize
    others = size - 1
    reach = [0, 0] if smoothing is None else [-smoothing.offsets[0], smoothing.offsets[-1]]
    return {
        "halo": 2 * row * sum(len(piece.heads) * piece.back for piece in roles.pieces) * (size > 1),
        "gather": 2 * row * shard.length * others * len(roles.far_kv),
        "queries": 2 * row * shard.halves[1] * len(roles.far) * (size > 1),
        "first": 2 * row * sum(len(piece.heads) * piece.first for piece in roles.pieces) * others,
        "smoothing": row * n_kv_heads * sum(reach) * (size > 1),
    }


def _needed(plan: HeadPlan, n_kv_heads: int, total: int, smoothing: Smoothing | None) -> int:
    """Keys that a shard must have, so that what its neighbours need is there, and first keys are in no halo."""
    roles = Roles.of(plan, held_heads(plan, n_kv_heads, smoothing), total)
    pooled = 0 if smoothing is None else max(-smoothing.offsets[0], smoothing.offsets[-1])
    return max(roles.back + roles.first, pooled)
