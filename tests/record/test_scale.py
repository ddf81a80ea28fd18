"""Axes: logarithms and ticks."""

import math

from hypothesis import given
from hypothesis import strategies as st

from stoker.record._scale import ticks, wants_log

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def test_when_a_logarithm_helps():
    assert wants_log([1.0, 0.01, math.nan, math.inf]) and wants_log([5e-324, 1e308])
    assert not any(map(wants_log, ([], [math.nan], [1.0, 0.5], [1.0, 0.0], [1.0, -0.01])))


def test_round_numbers():
    assert ticks(0, 1, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-3.2, 3.1, 3) == [-3.2, 3.1] and ticks(-3.2, 3.1, 4) == [-2.0, 0.0, 2.0]
    assert ticks(1e-9, 1.0, 4, log=True) == [1e-09, 1e-06, 0.001, 1.0]
    assert ticks(0.02, 0.5, 4, log=True) == [0.02, 0.1, 0.5] and ticks(7.0, 7.0, 4) == [7.0]


@given(NUMBERS, NUMBERS, st.integers(2, 8))
def test_ticks_lie_between_the_ends_and_are_few(a, b, most):
    low, high = sorted((a, b))
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most + 2 and found == sorted(found)
    room = (high / 2 - low / 2) * 1e-6
    assert all(low - room <= each <= high + room for each in found)
