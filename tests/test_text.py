"""Sizes, durations, moments and numbers as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker._text import (
    escape_control,
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_short,
    format_size,
    format_time,
    pluralize,
)


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (format_size, 0, "0 B"),
        (format_size, 999, "999 B"),
        (format_size, 999_960, "1.0 MB"),
        (format_size, 3e12, "3.0 TB"),
        (format_duration, -1, "0.00 s"),
        (format_duration, 9.99, "9.99 s"),
        (format_duration, 9.997, "10.0 s"),
        (format_duration, 59.94, "59.9 s"),
        (format_duration, 59.96, "1 min 0 s"),
        (format_duration, 3599, "59 min 59 s"),
        (format_duration, 3599.6, "1 h 0 min"),
        (format_duration, 90_000, "25 h 0 min"),
        (format_clock, 3599.6, "1:00:00"),
        (format_clock, 86_400, "1 d 0:00:00"),
        (format_number, 1, "1.000"),
        (format_number, 0, "0.000"),
        (format_number, 1234, "1234"),
        (format_number, 9999.9, "10000"),
        (format_number, 123456, "123500"),
        (format_number, 1e9, "1.000e+09"),
        (format_number, 1e-3, "0.001000"),
        (format_number, -1e-12, "-1.000e-12"),
        (format_number, -math.inf, "-inf"),
        (format_number, math.nan, "nan"),
        (format_number, None, ""),
        (format_short, 0.5, "0.5"),
        (format_short, 12345.6, "12350"),
        (format_short, math.nan, "nan"),
        (format_count, 0, "0"),
        (format_count, 1000, "1.00k"),
        (format_count, 999_999, "1.00M"),
        (format_count, 2.5e12, "2.50T"),
    ],
)
def test_a_value_as_text(function, value, text):
    assert function(value) == text


@given(st.floats(-1e300, 1e300).filter(lambda value: abs(value) > 1e-300))
def test_a_number_keeps_four_significant_digits(value):
    assert float(format_number(value)) == pytest.approx(value, rel=5.1e-4, abs=0)
    assert float(format_short(value)) == pytest.approx(value, rel=5.1e-4, abs=0)
    assert len(format_number(value)) <= 11


@pytest.mark.parametrize("time", [None, math.nan, math.inf, 1e300, "then"], ids=str)
def test_a_time_outside_the_calendar_is_empty(time):
    assert format_time(time) == ""


def test_a_count_has_its_noun():
    assert [pluralize(0, "update"), pluralize(1, "batch"), pluralize(2, "batch")] == [
        "0 updates",
        "1 batch",
        "2 batches",
    ]


@given(st.text())
def test_every_character_of_an_escaped_text_is_printable(text):
    escaped = escape_control(text)
    assert escaped.isprintable() and (escaped == text) == text.isprintable()
