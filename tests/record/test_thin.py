"""Fewer points that look the same."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record._thin import thin

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300).map(np.array)


@settings(max_examples=200, deadline=None)
@given(values=VALUES, most=st.integers(0, 60))
def test_what_is_kept_has_the_ends_the_extremes_and_the_gaps(values, most):
    kept = thin(values, most)
    assert (np.diff(kept) > 0).all(), "in order, each once"
    assert len(kept) <= max(most, 5)
    assert not len(values) or (kept[0], kept[-1]) == (0, len(values) - 1)
    numbers = values[~np.isnan(values)]
    if len(numbers):
        assert values[kept][~np.isnan(values[kept])].min() == numbers.min()
        assert values[kept][~np.isnan(values[kept])].max() == numbers.max()
    assert np.isnan(values[kept]).any() == np.isnan(values).any()


def test_every_bucket_keeps_its_peak():
    values = np.zeros(100_000)
    peaks = np.arange(50, 100_000, 1000)
    values[peaks] = 1.0
    assert set(peaks) <= set(thin(values, 1000))


def test_a_few_values_all_stay():
    assert thin(np.array([3.0, 1.0]), 0).tolist() == [0, 1]
    assert thin(np.array([]), 10).tolist() == []


def test_a_line_stays_broken_where_it_was():
    values = np.arange(1000.0)
    values[500] = np.nan
    assert 500 in thin(values, 20)
