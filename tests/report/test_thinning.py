"""Thinning keeps what a reader of the curve must not miss."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.report.thinning import KEPT_PER_BUCKET, blocks, thin

SPECIAL = [np.nan, np.inf, -np.inf]


@st.composite
def curves(draw):
    """Longer than any limit drawn beside them, with a few values that are not finite, and long stretches of them."""
    values = np.random.default_rng(draw(st.integers(0, 2**32))).normal(size=draw(st.integers(81, 400)))
    for start in draw(st.lists(st.integers(0, len(values) - 1), max_size=5)):
        values[start : start + draw(st.sampled_from([1, 2, 50]))] = draw(st.sampled_from(SPECIAL))
    return values


@given(curves(), st.integers(KEPT_PER_BUCKET + 2, 80))
def test_extremes_ends_and_non_finite_values_survive(values, limit):
    kept = thin(values, limit)
    finite, kept_finite = values[np.isfinite(values)], values[kept][np.isfinite(values[kept])]
    assert len(kept) <= limit
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert kept[0] == 0 and kept[-1] == len(values) - 1
    if len(finite):
        assert (kept_finite.min(), kept_finite.max()) == (finite.min(), finite.max())
    assert np.isfinite(values[kept]).all() == np.isfinite(values).all()


@given(st.integers(1000, 5000), st.data())
def test_every_lone_spike_survives(n, data):
    # Two spikes nearer than a bucket may share it; those further apart than a bucket never do.
    limit = 602
    bucket = -(-n // ((limit - 2) // KEPT_PER_BUCKET))
    spikes = data.draw(st.lists(st.integers(0, n // (2 * bucket) - 1), unique=True, max_size=20))
    places = [spike * 2 * bucket for spike in spikes]
    values = np.sin(np.arange(n))
    values[places] = 10.0
    assert set(places) <= set(thin(values, limit).tolist())


def test_short_curve_stays_whole():
    assert thin(np.arange(5.0), 10).tolist() == [0, 1, 2, 3, 4]


def test_limit_too_small_for_one_bucket_is_refused():
    with pytest.raises(ValueError, match="limit must be at least 5, got 4"):
        thin(np.arange(9.0), 4)


@given(st.integers(0, 500), st.integers(1, 50))
def test_blocks_cover_everything_once(n, limit):
    parts = blocks(n, limit)
    assert len(parts) <= limit
    assert [i for part in parts for i in part] == list(range(n))
