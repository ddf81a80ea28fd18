"""Curves in braille, against dots set by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidArgument
from stoker.view.console import plot_text
from stoker.view.console._plot import dots

FLOATS = st.floats(allow_nan=True, allow_infinity=True)
BITS = {(0, 0): 1, (1, 0): 2, (2, 0): 4, (3, 0): 64, (0, 1): 8, (1, 1): 16, (2, 1): 32, (3, 1): 128}


def lit(rows):
    """The dots that are set, as (row, column) from the top left."""
    found = set()
    for y, row in enumerate(rows):
        for x, cell in enumerate(row):
            bits = ord(cell) - 0x2800
            found |= {(4 * y + dy, 2 * x + dx) for (dy, dx), bit in BITS.items() if bits & bit}
    return found


@given(st.lists(FLOATS, max_size=200), st.integers(1, 30), st.integers(1, 10), st.booleans())
def test_any_values_fill_exactly_the_lines_asked_for(values, width, height, ascii_only):
    lines = plot_text(values, width, height, ascii_only=ascii_only)
    assert [len(line) for line in lines] == [width] * height
    text = "".join(lines)
    assert text.isascii() if ascii_only else all(0x2800 <= ord(cell) < 0x2900 for cell in text)
    if any(map(math.isfinite, values)) and len(values) >= 2 * width:
        assert text.strip(" ⠀"), "a finite value shows"


@given(st.lists(st.floats(-1e6, 1e6), min_size=8, max_size=300), st.integers(1, 4), st.integers(1, 6))
def test_each_column_shows_its_least_and_its_greatest(values, width, height):
    columns, rows = 2 * width, 4 * height - 1
    shown = lit(plot_text(values, width, height))
    low, high = min(values), max(values)
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        for value in (min(part), max(part)):
            row = (
                rows // 2
                if high / 4 == low / 4
                else rows - round(rows * ((value / 4 - low / 4) / (high / 4 - low / 4)))
            )
            assert (row, column) in shown


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=100), st.integers(1, 20), st.integers(1, 6))
def test_a_curve_has_no_holes(values, width, height):
    shown = lit(plot_text(values, width, height))
    for column in range(2 * width):
        rows = sorted(row for row, each in shown if each == column)
        assert rows == list(range(rows[0], rows[-1] + 1))
        after = {row for row, each in shown if each == column + 1}
        assert column == 2 * width - 1 or any(abs(a - b) <= 1 for a in rows for b in after)


def test_nan_and_infinity_leave_a_gap():
    values = [1.0, 1.0, math.nan, math.inf, 1.0, 1.0]
    assert {column for _, column in lit(plot_text(values, 3, 1))} == {0, 1, 4, 5}


def test_a_falling_and_a_constant_curve():
    assert lit(plot_text([7, 6, 5, 4, 3, 2, 1, 0], 4, 2)) == {(place, place) for place in range(8)}
    assert lit(plot_text([3.0, 3.0], 1, 1)) == {(1, 0), (1, 1)}
    assert plot_text([], 2, 1) == ["⠀⠀"]
    assert plot_text([5.0], 2, 1) != ["⠀⠀"]


def test_log_spaces_by_ratio():
    values = [10.0**-power for power in range(8)]
    assert plot_text(values, 4, 2, log=True) == plot_text(list(range(8, 0, -1)), 4, 2)


def test_curves_can_share_a_scale():
    assert dots([0.0, 0.0], 1, 1, low=0.0, high=1.0) == [[64 | 128]]
    assert dots([1.0, 1.0], 1, 1, low=0.0, high=1.0) == [[1 | 8]]


def test_what_cannot_be_drawn():
    with pytest.raises(InvalidArgument, match="width and height are 0 and 3; expected at least 1 each"):
        plot_text([1], 0, 3)
    with pytest.raises(InvalidArgument, match=r"log needs values above 0; the least is -1"):
        plot_text([1.0, -1.0], 3, 3, log=True)
