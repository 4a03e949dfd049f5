"""The computed shuffle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.data.permutation import Permutation


@given(size=st.integers(1, 5000), key=st.text())
def test_it_is_a_bijection(size, key):
    assert sorted(Permutation(size, key)(np.arange(size)).tolist()) == list(range(size))


@given(size=st.integers(1, 2**60), key=st.text(), data=st.data())
def test_a_place_alone_is_what_it_is_among_others(size, key, data):
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    permutation = Permutation(size, key)
    together = permutation(places)
    assert ((together >= 0) & (together < size)).all()
    assert [permutation(places[i : i + 1])[0] for i in range(len(places))] == together.tolist()


def test_large_sizes_give_different_things_for_different_places():
    size = 10**12 + 39
    assert len(set(Permutation(size, "key")(np.arange(0, size, size // 10_000)).tolist())) == 10_001


def test_keys_give_different_orders():
    orders = {tuple(Permutation(50, f"0/{epoch}")(np.arange(50)).tolist()) for epoch in range(100)}
    assert len(orders) == 100


def test_neighbours_are_scattered():
    # The mean distance of two independent uniform places is a third of the size.
    order = Permutation(10_000, "key")(np.arange(10_000))
    assert 0.3 < np.abs(np.diff(order)).mean() / 10_000 < 0.37


def test_an_empty_range_is_refused():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        Permutation(0, "key")
