"""Which rectangles of the attention matrix a head's reach covers. Pure integer geometry; `passes` computes on it.

A `Tile` is a run of equally shaped rectangles of the T x S matrix, each a fixed step from the previous one, so that one
call on strided views serves them all. Row t of T is position t + S - T; columns are positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

OPEN = "open"  # every pair is visible
CAUSAL = "causal"  # square, key c visible to query r if c <= r
MASKED = "masked"  # visibility must be worked out from the positions


class Tile(NamedTuple):
    """`n` rectangles of rows x cols; the i-th starts at row `row + i * row_step` and column `col + i * col_step`."""

    row: int
    col: int
    rows: int
    cols: int
    kind: str
    n: int = 1
    row_step: int = 0
    col_step: int = 0
    merge: bool = False
    """Its rows already hold the result over other columns, with which it is merged by log-sum-exp."""

    def pieces(self, most: int) -> Iterator[Tile]:
        """The same rectangles in runs of at most `most`."""
        most = max(1, most)
        for i in range(0, self.n, most):
            yield self._replace(
                row=self.row + i * self.row_step, col=self.col + i * self.col_step, n=min(most, self.n - i)
            )


class Reach(NamedTuple):
    """How far a query sees: `back` keys before its own position and `ahead` keys after it."""

    back: int
    ahead: int

    @classmethod
    def of(cls, window: int, n_keys: int, causal: bool) -> Reach:
        """A window of n_keys or more is the same as global."""
        back = min(window, n_keys) - 1
        return cls(back, 0 if causal else back)

    def is_global(self, n_keys: int) -> bool:
        return self.back >= n_keys - 1

    def rows(self, start: int, stop: int, n_queries: int, n_keys: int) -> Tile:
        """One masked rectangle that covers everything rows start..stop may see."""
        past = n_keys - n_queries
        first = max(0, start + past - self.back)
        last = min(n_keys, stop + past + self.ahead)
        return Tile(start, first, stop - start, last - first, MASKED)


def band_tiles(
    n_queries: int, n_keys: int, reach: Reach, *, block: int, align: int = 1, tallest: int | None = None
) -> list[Tile]:
    """A local head: blocks of `block` queries in the interior, where all blocks have the same mask, and at the edges
    tiles of at most `tallest` queries (four blocks if None).

    `align` rounds the keys of a block up to a multiple (some matrix kernels slow down on odd widths).
    """
    past = n_keys - n_queries
    tallest = tallest or 4 * block
    block = min(block, tallest)
    cols = -(-(block + reach.back + reach.ahead) // align) * align
    back = cols - block - reach.ahead
    start, stop = max(0, back - past), n_queries - reach.ahead
    n = max(0, stop - start) // block
    if n == 0:
        return list(row_tiles(n_queries, n_keys, reach, rows=tallest))
    start = stop - n * block
    tiles = [Tile(start, start + past - back, block, cols, MASKED, n, block, block)]
    for first, last in ((0, start), (stop, n_queries)):
        for row in range(first, last, tallest):
            tiles.append(reach.rows(row, min(row + tallest, last), n_queries, n_keys))
    return tiles


def row_tiles(n_queries: int, n_keys: int, reach: Reach, *, rows: int, cols: int | None = None) -> Iterator[Tile]:
    """Any head: `rows` queries at a time against all they may see, in at most `cols` columns, which are then merged."""
    for start in range(0, n_queries, rows):
        tile = reach.rows(start, min(start + rows, n_queries), n_queries, n_keys)
        width = cols or tile.cols
        for first in range(0, tile.cols, width):
            yield tile._replace(col=tile.col + first, cols=min(width, tile.cols - first), merge=first > 0)


def global_tiles(n_queries: int, n_keys: int, causal: bool, *, parts: int = 1) -> list[Tile]:
    """A global head in tiles that need no mask, its rows in `parts` that can run in parallel.

    If two threads split one long triangle, the second would get three quarters of the work. So each part has a causal
    square on the diagonal, and the rows of the open rectangles below are divided again.
    """
    if not causal:
        return [_open(0, 0, n_queries, n_keys, parts, merge=False)]
    return diagonal_tiles(n_queries, n_keys, causal, CAUSAL, squares=parts, parts=parts)


def diagonal_tiles(
    n_queries: int, n_keys: int, causal: bool, kind: str = MASKED, *, squares: int, parts: int = 1
) -> list[Tile]:
    """A global head as `squares` of the given kind on the diagonal and open rectangles beside them, with their rows in
    `parts`. Each rectangle lies before the positions of all its rows, or after them.
    """
    past = n_keys - n_queries
    side = n_queries // squares
    rest = n_queries - side * squares  # fewer rows than squares; they come first, where causal rows see least
    tiles = [Tile(rest, past + rest, side, side, kind, squares, side, side)]
    starts = list(range(rest, n_queries, side))
    if rest:
        tiles.append(Tile(0, past, rest, rest, kind))
        starts.insert(0, 0)
    for row, end in pairwise([*starts, n_queries]):
        if past + row:
            tiles.append(_open(row, 0, end - row, past + row, parts, merge=True))
        if not causal and end < n_queries:
            tiles.append(_open(row, past + end, end - row, n_queries - end, parts, merge=True))
    return tiles


def _open(row: int, col: int, rows: int, cols: int, parts: int, *, merge: bool) -> Tile:
    """A fully visible rectangle, its rows divided into `parts` if that leaves no remainder."""
    if rows % parts:
        parts = 1
    share = rows // parts
    return Tile(row, col, share, cols, OPEN, parts, share if parts > 1 else 0, 0, merge)
