"""Axes: round numbers inside the range, in order, few enough, and told apart."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.view.console._axis import Axis

NUMBERS = st.floats(-1e12, 1e12)
KINDS = ["number", "ratio", "count", "clock"]


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.sampled_from(KINDS), st.integers(1, 12))
def test_the_marks_of_any_axis_lie_on_it(values, kind, most):
    values = [abs(value) + 1e-3 for value in values] if kind == "ratio" else values
    axis = Axis.around(np.array(values), kind)
    marks = list(axis.marks(most))
    assert marks == sorted(marks) and len(marks) <= most + 1
    shares = axis.share(marks)
    assert all(-1e-6 <= share <= 1 + 1e-6 for share in shares)
    shares = axis.share(values)
    assert shares.min() >= -1e-9 and shares.max() <= 1 + 1e-9


@pytest.mark.parametrize(
    ("axis", "most", "texts"),
    [
        (Axis(0.0, 1.0), 5, ["0.0", "0.5", "1.0"]),
        (Axis(0.912, 0.987), 4, ["0.92", "0.94", "0.96", "0.98"]),
        (Axis(-3.0, 3.0), 4, ["-2", "0", "2"]),
        (Axis(1, 4, "count"), 8, ["1", "2", "3", "4"]),
        (Axis(0, 2_400_000, "count"), 3, ["0", "1M", "2M"]),
        (Axis(1e-6, 1.0, "ratio"), 3, ["1e-06", "0.001", "1"]),
        (Axis(2.1, 2.4, "ratio"), 4, ["2.1", "2.2", "2.3", "2.4"]),
        (Axis(0, 7200, "clock"), 4, ["0:00", "1:00:00", "2:00:00"]),
        (Axis(0, 10 * 86400, "clock"), 4, ["0:00", "3 d 0:00:00", "6 d 0:00:00", "9 d 0:00:00"]),
    ],
    ids=["unit", "narrow", "below zero", "few", "millions", "decades", "narrow ratio", "hours", "days"],
)
def test_numbers_as_people_write_them(axis, most, texts):
    assert list(axis.marks(most).values()) == texts


def test_a_single_value_stands_in_the_middle():
    assert Axis.around(np.array([0.5])).share(0.5) == 0.5
    assert Axis.around(np.array([0.0])).share(0.0) == 0.5
    assert math.isclose(Axis.around(np.array([3.0]), "ratio").share(3.0), 0.5)
    assert Axis.around(np.array([math.nan])) == Axis(0.0, 1.0)
