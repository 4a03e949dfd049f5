"""Heads of equal reach, gathered to be computed together: their flattened tensors, tiles, and what each tile sees.

Shapes: B batch, H heads, S keys; N = (sequences of a slab) x (heads of the group); tiles add n rectangles of R rows
and C columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from longshort.ops.blocked import fused
from longshort.ops.blocked.tiles import (
    MASKED,
    OPEN,
    Reach,
    Tile,
    band_tiles,
    diagonal_tiles,
    global_tiles,
    row_tiles,
)
from longshort.ops.heads import Heads, as_slice
from longshort.ops.options import Options
from longshort.ops.scores import slope_bias

_DENSE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 24}
"""Number of logits that the dense engine holds at once: about the L2 cache of a core, or enough to fill a GPU."""
_MASK_ELEMENTS = 1 << 20
_SLOPED_SIDE = 256
"""Largest side of the masked squares on the diagonal of a global head with slopes."""
_SLAB_ELEMENTS = 1 << 16
"""Query elements of a sequence above which a separate call costs less than copying the heads together."""

SPREAD = 80.0
"""Largest range of the exponents of a decaying row for which queries and keys may be rescaled: exp(40) = 2e17 at its
ends, far from the largest fp32 number; a common factor costs a dot product no digits."""


@dataclass(frozen=True)
class Group:
    """Heads of one reach and the sequences computed together with them (a slab), their tensors flattened to N."""

    options: Options
    reach: Reach
    q: Tensor
    k: Tensor
    v: Tensor
    decays_N: Tensor | None
    slopes_N: Tensor | None
    query_ids: Tensor | None
    key_ids: Tensor | None
    """(sequences, positions): a query sees keys of its own id, none if the id is negative; None if all are equal."""
    masks: dict[tuple[int, ...], Tensor]
    """By geometry; shared by the sequences of a group."""
    steep: bool
    """Its heads decay too far for queries and keys to be rescaled."""
    apart: int = 0
    """Added to the distance between a query and a key: 1 where the keys begin after each query's own position."""
    blind_rows: bool = False
    """Some queries may see no key, and PyTorch's kernel gives these an arbitrary lse."""
    first: int = 0
    """Keys at the start of a document that its heads see besides their windows: see `firsts`."""
    rescaled: bool = False
    """Its queries and keys are rescaled: logits of keys after their query, which the mask hides, grow with distance."""

    @property
    def scale(self) -> float:
        return self.options.scale_for(self.q)

    @property
    def n_queries(self) -> int:
        return self.q.shape[1]

    @property
    def n_keys(self) -> int:
        return self.k.shape[1]

    @property
    def is_global(self) -> bool:
        return self.reach.is_global(self.n_keys)

    @property
    def is_fused(self) -> bool:
        """Can PyTorch's flash attention compute it? Slopes go into its mask."""
        if self.options.softcap is not None or self.decays_N is not None:
            return False
        needs_mask = self.key_ids is not None or not self.is_global or self.slopes_N is not None
        return fused.serves(self.q, scale=self.scale, masked=needs_mask)

    def fused_tiles(self, *, backward: bool) -> Iterable[Tile]:
        size, keys = self.n_queries, self.n_keys
        if not self.is_global:
            block, align = fused.band_block(self.reach.back + 1, backward=backward)
            tiles = band_tiles(size, keys, self.reach, block=block, align=align, tallest=self._tallest(4 * block))
        elif self.key_ids is None:
            causal, parts = self.options.causal, fused.head_parts(self.q, causal=self.options.causal)
            if self.slopes_N is None:
                return global_tiles(size, keys, causal, parts=parts)
            squares = max(parts, -(-size // self._tallest(_SLOPED_SIDE)))
            return diagonal_tiles(size, keys, causal, squares=squares, parts=parts)
        else:
            # A tile is also computed above the diagonal, so the tiles of causal rows are short.
            most = min(128, size // 4) if self.options.causal else size
            rows = max(32, min(most, _MASK_ELEMENTS // keys))
            tiles = list(row_tiles(size, keys, self.reach, rows=self._tallest(rows)))
        if self.key_ids is not None:  # each rectangle then has a mask of its own
            return in_pieces(tiles, lambda tile: _MASK_ELEMENTS // (tile.rows * tile.cols))
        return tiles

    def _tallest(self, rows: int) -> int:
        """Rows of a masked tile, `rows` at most. The kernel adds the mask to the logits it hides, which must not be
        infinite, as inf - inf is NaN: half a row of rescaled logits spans exp(SPREAD / 2), a whole one nearly all that
        fp32 can hold.
        """
        return min(rows, max(1, self.n_keys // 2)) if self.rescaled else rows

    @property
    def dense_elements(self) -> int:
        """Logits of each of the N heads that the dense engine holds at once."""
        return _DENSE_ELEMENTS.get(self.q.device.type, _DENSE_ELEMENTS["cuda"]) // self.q.shape[0]

    def dense_tiles(self) -> Iterator[Tile]:
        elements = self.dense_elements
        if self.is_global:
            side = 1 << max(5, int(math.log2(max(1, elements))) // 2)
            yield from row_tiles(self.n_queries, self.n_keys, self.reach, rows=side, cols=2 * side)
        else:
            block = min(128, max(32, self.reach.back + 1))
            tiles = band_tiles(self.n_queries, self.n_keys, self.reach, block=block)
            yield from in_pieces(tiles, lambda tile: elements // (tile.rows * tile.cols))

    def visible(self, tile: Tile) -> Tensor | None:
        """(1 or N, 1 or n, R, C): which pairs of the tile may see each other; None if all may."""
        if self.key_ids is None and self._sees_all(tile):
            return None
        offset = self._offsets(tile)
        visible = (offset <= self.reach.back) & (offset >= -self.reach.ahead)
        if self.query_ids is None or self.key_ids is None:
            return visible[None, None]
        ours = rectangles(self.query_ids[:, :, None], tile.row, tile.rows, tile.n, tile.row_step)
        theirs = rectangles(self.key_ids[:, :, None], tile.col, tile.cols, tile.n, tile.col_step)
        same = (ours == theirs.mT) & (ours >= 0) & visible
        return same if len(same) == 1 else same.repeat_interleave(self.q.shape[0] // len(same), dim=0)

    def _sees_all(self, tile: Tile) -> bool:
        """Decided by the distances at the tile's corners, which are equal for all rectangles of a masked run."""
        if tile.kind == OPEN:
            return True
        nearest = tile.row + self.n_keys - self.n_queries - tile.col
        return nearest + tile.rows - 1 <= self.reach.back and nearest - tile.cols + 1 >= -self.reach.ahead

    def additive_mask(self, tile: Tile) -> Tensor | None:
        """For the fused kernel: minus slope * distance where visible, else -inf; None if not needed. In an open tile
        all queries share one row of it, with distances from the nearest column; `row_bias` has the rest.
        """
        if self.key_ids is not None:
            mask = self._mask(tile)
        elif tile.kind == MASKED:
            offset = tile.row - tile.col  # with the shape, all that the mask of one group depends on
            key = (*self.reach, self.slopes_N is not None, offset, tile.rows, tile.cols)
            if key not in self.masks:
                self.masks[key] = self._mask(tile)
            mask = self.masks[key]
        elif self.slopes_N is not None:
            columns = torch.arange(tile.cols) + (tile.col - self._nearest(tile))
            mask = slope_bias(self.slopes_N, columns.abs(), self.q.dtype)
        else:
            return None
        return mask.expand(self.q.shape[0], tile.n, tile.rows, tile.cols)

    def _mask(self, tile: Tile) -> Tensor:
        visible = self.visible(tile)
        if visible is None:
            visible = torch.ones((), dtype=torch.bool, device=self.q.device)
        bias = torch.zeros((), dtype=self.q.dtype, device=self.q.device)
        if self.slopes_N is not None:
            bias = slope_bias(self.slopes_N, self.distance(tile), self.q.dtype)
        return torch.where(visible, bias, -torch.inf)

    def row_bias(self, tile: Tile) -> Tensor | None:
        """(N, n, R): minus slope * distance from each query to the nearest column of an open tile. All logits of a row
        share this part of the bias, so it changes lse alone. None where there is no such part.
        """
        if self.slopes_N is None or self.key_ids is not None or tile.kind != OPEN:
            return None
        first = torch.arange(tile.n)[:, None] * tile.row_step + (tile.row + self.n_keys - self.n_queries)
        distance = (first + torch.arange(tile.rows) - self._nearest(tile)).abs() + self.apart
        return slope_bias(self.slopes_N[:, 0], distance, self.q.dtype)

    def _nearest(self, tile: Tile) -> int:
        """The column of an open tile nearest to its rows: the last, or the first if the tile comes after the rows."""
        return tile.col + tile.cols - 1 if tile.col < tile.row + self.n_keys - self.n_queries else tile.col

    def distance(self, tile: Tile) -> Tensor:
        """(R, C): |t - j|, the same for every rectangle of a run, since masked tiles step along the diagonal."""
        return self._offsets(tile).abs() + self.apart

    def _offsets(self, tile: Tile) -> Tensor:
        device = self.q.device
        row, col = torch.arange(tile.rows, device=device), torch.arange(tile.cols, device=device)
        return row[:, None] - col + (tile.row + self.n_keys - self.n_queries - tile.col)


def groups(
    q: Tensor, k: Tensor, v: Tensor, options: Options, segments_BS: Tensor | None
) -> Iterator[tuple[Heads, slice, Group]]:
    """Heads of equal reach together, with as many sequences as can be flattened without a costly copy. Heads that decay
    too far for queries and keys to be rescaled form groups of their own.
    """
    n_keys, size = k.shape[2], q.shape[1] // k.shape[1]
    by_reach: dict[tuple[Reach, bool, int], list[int]] = {}
    for head, window in enumerate(options.windows):
        steep = options.decays is not None and options.decays[head] * n_keys > SPREAD
        reach = Reach.of(window, n_keys, options.causal)
        first = 0 if options.firsts is None or reach.is_global(n_keys) else min(options.firsts[head], n_keys)
        by_reach.setdefault((reach, steep, first), []).append(head)
    for (reach, steep, first), members in by_reach.items():
        heads, masks = as_slice(members), dict[tuple[int, ...], Tensor]()
        for rows in _slabs(q, members):
            queries = flatten(q, rows, heads)
            keys, values = (flatten(x, rows, kv_heads(heads, size)) for x in (k, v))
            decays, slopes = (_per_head(rates, members, queries) for rates in (options.decays, options.slopes))
            if q.device.type == "cpu" and not (decays is None and slopes is None):  # half rounds the products
                wide = torch.promote_types(q.dtype, torch.float32)
                queries, keys, values = (x.to(wide) for x in (queries, keys, values))
            ids = None if segments_BS is None else segments_BS[rows]
            ours = None if ids is None else ids[:, n_keys - q.shape[2] :]
            tensors = (queries, keys, values, decays, slopes, ours, ids)
            yield heads, rows, Group(options, reach, *tensors, masks, steep, first=first)


def _slabs(q: Tensor, members: list[int]) -> Iterator[slice]:
    """Sequences one by one where each is enough work, since (batch, heads) of a slice of heads has no single stride."""
    batch = q.shape[0]
    work = len(members) * q.shape[2] * q.shape[3]
    together = len(members) == 1 or work < _SLAB_ELEMENTS or q.device.type != "cpu"
    step = batch if together else 1
    for first in range(0, batch, step):
        yield slice(first, first + step)


def _per_head(rates: tuple[float, ...] | None, members: list[int], q_NTD: Tensor) -> Tensor | None:
    """(N, 1, 1, 1) float64, since a rate times a distance of 10^5 needs the digits; None if all rates are 0."""
    mine = [rates[head] for head in members] if rates is not None else []
    if not any(mine):
        return None
    mine *= q_NTD.shape[0] // len(members)
    return torch.tensor(mine, dtype=torch.float64, device=q_NTD.device)[:, None, None, None]


def kv_heads(heads: Heads, size: int) -> Heads:
    """The KV head that each query head reads, when `size` query heads share one."""
    if size == 1:
        return heads
    members = range(heads.start, heads.stop) if isinstance(heads, slice) else heads
    return [head // size for head in members]


def flatten(x: Tensor, rows: slice, heads: Heads) -> Tensor:
    """(B, H, ...) -> (N, ...); a view wherever one exists."""
    return x[rows][:, heads].flatten(0, 1)


@contextmanager
def flat(x: Tensor, rows: slice, heads: Heads, *, add: bool = False) -> Iterator[Tensor]:
    """A flattened part of `x` to write into: a view if possible, else a buffer that is written (or added) back."""
    part = x[rows][:, heads]
    flat = part.flatten(0, 1)
    if isinstance(heads, slice) and flat.data_ptr() == part.data_ptr():
        yield flat
        return
    flat = torch.zeros_like(flat)
    yield flat
    if not add:
        x[rows, heads] = flat.view_as(part)
    else:  # several query heads may share the KV head they add to
        members = list(range(x.shape[1]))[heads] if isinstance(heads, slice) else heads
        x[rows].index_add_(1, torch.tensor(members, device=x.device), flat.view_as(part))


def in_pieces(tiles: Iterable[Tile], most: Callable[[Tile], int]) -> Iterator[Tile]:
    for tile in tiles:
        yield from tile.pieces(most(tile))


def rectangles(x: Tensor, start: int, size: int, n: int, step: int) -> Tensor:
    """(N, L, D) -> (N, n, size, D): n runs of positions, each `step` after the previous one, as a view."""
    by_row, by_position, by_column = x.stride()
    strides = (by_row, step * by_position, by_position, by_column)
    return x.as_strided((x.shape[0], n, size, x.shape[2]), strides, x.storage_offset() + start * by_position)
