"""Numbers and times, at their edges (the rest is in the docstrings)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._text import format_number as number
from stoker.view.console._format import clock, duration, plural, short, visible


@given(st.floats(-1e300, 1e300).filter(lambda value: abs(value) > 1e-300))
def test_four_digits_are_what_is_left_of_a_number(value):
    assert float(number(value)) == pytest.approx(value, rel=5.1e-4, abs=0)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (number(0), "0.000"),
        (number(-1e-12), "-1.000e-12"),
        (number(9999.9), "10000"),
        (number(-math.inf), "-inf"),
        (short(0), "0"),
        (short(1000), "1.00k"),
        (short(999_999), "1.00M"),
        (short(2.5e12), "2.50T"),
        (duration(-0.1), "0.00 s"),
        (duration(9.99), "9.99 s"),
        (duration(59.7), "1:00"),
        (clock(3599.6), "1:00:00"),
        (clock(86_400), "1 d 0:00:00"),
        (plural(0, "update"), "0 updates"),
        (plural(1, "batch"), "1 batch"),
    ],
)
def test_edges(told, text):
    assert told == text


@given(st.text())
def test_everything_in_a_text_can_be_seen(text):
    assert visible(text).isprintable() and (visible(text) == text) == text.isprintable()
