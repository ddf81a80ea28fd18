"""Bars: as high as their numbers, the latest epochs where there is no room for all."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidArgument
from stoker.view.console import Line, bars

FLOATS = st.floats(-1e9, 1e9) | st.just(math.nan) | st.just(math.inf)


def line(values, style="red"):
    return Line("loss", np.arange(1.0, len(values) + 1), np.array(values, float), style)


def heights(rows, letter="█"):
    """How many whole cells each column has."""
    cells = [row.plain.split("┤")[-1].split("│")[-1] for row in rows[:-2]]
    widest = max(map(len, cells))
    return [sum(row.ljust(widest)[column] == letter for row in cells) for column in range(widest)]


@given(st.lists(st.lists(FLOATS, max_size=40), max_size=3), st.integers(16, 60), st.integers(5, 20), st.booleans())
def test_anything_fills_exactly_the_room_it_has(many, width, height, ascii_only):
    rows = bars([line(values) for values in many], width, height, ascii_only=ascii_only)
    assert len(rows) == height and max(len(row.plain) for row in rows) <= width
    if ascii_only:
        assert "".join(row.plain for row in rows).isascii()


def test_a_bar_is_as_high_as_its_number():
    found = heights(bars([line([4, 2, 1])], 24, 10))
    assert found[0] == 8 and {4, 2} <= set(found)


def test_the_latest_epochs_where_there_is_no_room():
    rows = bars([line([1.0] * 50)], 24, 8)
    shown = rows[-1].plain.split()
    assert "49" in shown and "1" not in shown


def test_numbers_far_from_zero_stand_on_one_near_them():
    assert all("0.0 " not in row.plain for row in bars([line([0.91, 0.93, 0.95])], 40, 10))


def test_no_room_is_an_error():
    with pytest.raises(InvalidArgument, match="bars: width and height are 40 and 4"):
        bars([], 40, 4)


def test_without_colours_bars_are_told_apart_by_what_they_are_made_of():
    both = [line([4, 2, 1]), line([4, 2, 1])]
    rows = bars(both, 30, 10, colours=False)
    assert max(heights(rows)) == max(heights(rows, "o")) == 8
    assert "*" in bars(both, 30, 10, ascii_only=True)[0].plain, "the mark that the legend names"
