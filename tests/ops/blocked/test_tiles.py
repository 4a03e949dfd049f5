"""The tiling as geometry: every visible pair once, nothing outside the matrix, merges in the right order."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort.ops.blocked.tiles import (
    CAUSAL,
    MASKED,
    OPEN,
    Reach,
    Tile,
    band_tiles,
    diagonal_tiles,
    global_tiles,
    row_tiles,
)
from longshort.ops.options import GLOBAL


@st.composite
def shapes(draw):
    n_queries = draw(st.integers(1, 60))
    return n_queries, n_queries + draw(st.integers(0, 30))


def visible_pairs(n_queries, n_keys, reach):
    offset = np.arange(n_keys - n_queries, n_keys)[:, None] - np.arange(n_keys)
    return (offset <= reach.back) & (offset >= -reach.ahead)


def check_tiling(tiles: Iterable[Tile], n_queries: int, n_keys: int, reach: Reach) -> None:
    past = n_keys - n_queries
    sees = visible_pairs(n_queries, n_keys, reach)
    visits = np.zeros((n_queries, n_keys), dtype=int)
    begun = np.zeros(n_queries, dtype=bool)
    for tile in tiles:
        assert tile.n >= 1 and tile.rows >= 1 and tile.cols >= 1
        assert tile.n == 1 or tile.row_step >= tile.rows, "rectangles of a run must not share rows"
        assert tile.n == 1 or tile.kind == OPEN or tile.row_step == tile.col_step, "a run has one mask"
        for i in range(tile.n):
            row, col = tile.row + i * tile.row_step, tile.col + i * tile.col_step
            assert row >= 0 and row + tile.rows <= n_queries
            assert col >= 0 and col + tile.cols <= n_keys
            part = np.s_[row : row + tile.rows, col : col + tile.cols]
            if tile.kind == OPEN:
                assert sees[part].all()
            elif tile.kind == CAUSAL:
                assert tile.rows == tile.cols and row + past == col
                assert (sees[part] == np.tri(tile.rows, dtype=bool)).all()
            else:
                assert tile.kind == MASKED
            assert (begun[part[0]] == tile.merge).all(), "only the first tile of a row writes it, all others merge"
            begun[part[0]] = True
            visits[part] += 1
    assert begun.all()
    assert (visits[sees] == 1).all()


@pytest.mark.parametrize("causal", [True, False])
@settings(max_examples=300)
@given(shapes(), st.integers(1, 70), st.integers(1, 20), st.integers(1, 16))
def test_band_tiles_cover_each_visible_pair_of_a_local_head_once(causal, shape, window, block, align):
    reach = Reach.of(window, shape[1], causal)
    check_tiling(band_tiles(*shape, reach, block=block, align=align), *shape, reach)


@pytest.mark.parametrize("causal", [True, False])
@settings(max_examples=200)
@given(shapes(), st.just(GLOBAL) | st.integers(1, 70), st.integers(1, 40), st.none() | st.integers(1, 40))
def test_row_tiles_cover_each_visible_pair_of_any_head_once(causal, shape, window, rows, cols):
    reach = Reach.of(window, shape[1], causal)
    check_tiling(row_tiles(*shape, reach, rows=rows, cols=cols), *shape, reach)


@pytest.mark.parametrize("causal", [True, False])
@settings(max_examples=300)
@given(shapes(), st.integers(1, 8))
def test_global_tiles_cover_each_visible_pair_of_a_global_head_once(causal, shape, parts):
    reach = Reach.of(GLOBAL, shape[1], causal)
    check_tiling(global_tiles(*shape, causal, parts=min(parts, shape[0])), *shape, reach)


@given(shapes(), st.booleans(), st.integers(1, 8))
def test_no_part_of_a_global_head_needs_a_mask(shape, causal, parts):
    assert all(tile.kind != MASKED for tile in global_tiles(*shape, causal, parts=min(parts, shape[0])))


@pytest.mark.parametrize("causal", [True, False])
@settings(max_examples=300)
@given(shapes(), st.integers(1, 8), st.integers(1, 4))
def test_beside_masked_squares_each_rectangle_is_before_all_its_rows_or_after_them(causal, shape, squares, parts):
    reach = Reach.of(GLOBAL, shape[1], causal)
    squares, past = min(squares, shape[0]), shape[1] - shape[0]
    tiles = diagonal_tiles(*shape, causal, squares=squares, parts=parts)
    check_tiling(tiles, *shape, reach)
    for tile in tiles:
        first, last = past + tile.row, past + tile.row + (tile.n - 1) * tile.row_step + tile.rows - 1
        if tile.kind == MASKED:
            assert tile.rows == tile.cols and first == tile.col
        else:
            assert tile.col + tile.cols <= first or last < tile.col


@given(shapes(), st.integers(1, 70), st.integers(1, 20), st.integers(-1, 7))
def test_pieces_of_a_run_are_the_same_rectangles_in_shorter_runs(shape, window, block, most):
    def rectangles(tiles):
        return [
            (t.row + i * t.row_step, t.col + i * t.col_step, t.rows, t.cols, t.kind, t.merge)
            for t in tiles
            for i in range(t.n)
        ]

    for tile in band_tiles(*shape, Reach.of(window, shape[1], True), block=block):
        pieces = list(tile.pieces(most))
        assert max(piece.n for piece in pieces) <= max(1, most)
        assert rectangles(pieces) == rectangles([tile])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 50, 500])
def test_work_on_a_band_is_the_length_times_the_window_in_one_long_run(window, causal):
    length, block, align = 20_000, 32, 16
    reach = Reach.of(window, length, causal)
    tiles = band_tiles(length, length, reach, block=block, align=align)
    work = sum(tile.n * tile.rows * tile.cols for tile in tiles)
    assert work <= length * (reach.back + reach.ahead + 4 * block + align)
    assert max(tile.n * tile.rows for tile in tiles) > 0.9 * length


@given(st.integers(1, 50), st.booleans())
def test_window_of_all_keys_or_more_is_a_global_reach(n_keys, causal):
    whole = Reach.of(GLOBAL, n_keys, causal)
    assert Reach.of(n_keys, n_keys, causal) == Reach.of(n_keys + 1, n_keys, causal) == whole
    assert whole.is_global(n_keys)
    assert n_keys == 1 or not Reach.of(n_keys - 1, n_keys, causal).is_global(n_keys)
