"""Charts against dots set by hand, and of anything."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import InvalidArgument
from stoker.view.console import Line, chart, legend

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def line(values, name="loss", style="red"):
    return Line(name, np.arange(1.0, len(values) + 1), np.array(values, float), style)


def braille(rows):
    return "".join(letter for row in rows for letter in row.plain if 0x2801 <= ord(letter) < 0x2900)


@given(
    st.lists(st.lists(FLOATS, max_size=50), max_size=3),
    st.integers(16, 60),
    st.integers(5, 20),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_anything_fills_exactly_the_room_it_has(many, width, height, log, times, ascii_only):
    rows = chart([line(values) for values in many], width, height, log=log, times=times, ascii_only=ascii_only)
    assert len(rows) == height and max(len(row.plain) for row in rows) <= width
    if ascii_only:
        assert "".join(row.plain for row in rows).isascii()


def test_a_line_falls_from_the_top_left_to_the_bottom_right():
    rows = [row.plain for row in chart([line([3, 2, 1])], 40, 12)]
    assert rows[0][3] in "⠱⠑⠉⢄⠣" and rows[9].rstrip()[-1] != " "
    assert "3 ┤" in rows[0] and "1 ┤" in rows[9] and rows[11].split() == ["1", "2", "3"]


def test_nan_breaks_a_line_and_a_lone_point_is_seen():
    whole = braille(chart([line([1, 2, 3, 4, 5])], 40, 10))
    broken = chart([line([1, 2, math.nan, 4, math.inf])], 40, 10)
    assert 0 < len(braille(broken)) < len(whole)
    assert sum(row.plain.count("•") for row in broken) == 1


def test_log_leaves_out_what_is_not_above_zero():
    rows = [row.plain for row in chart([line([-1, 0, 1, 10, 100])], 40, 14, log=True)]
    assert [row.partition("┤")[0].strip() for row in rows if "┤" in row] == ["100", "10", "1"]
    assert rows[-1].split() == ["3", "4", "5"]


def test_the_last_line_shows_where_they_cross_and_a_nameless_one_gives_way():
    both = chart([line([1, 3], "a", "red"), line([3, 1], "b", "blue")], 40, 11)
    styles = {span.style for row in both for span in row.spans}
    assert {"red", "blue"} <= styles
    hidden = chart([line([1, 3], "", "red"), line([1, 3], "b", "blue")], 40, 11)
    assert "red" not in {span.style for row in hidden for span in row.spans}


def test_time_is_written_as_a_clock():
    rows = chart([Line("loss", np.array([0.0, 300.0]), np.array([1.0, 0.5]))], 60, 8, times=True)
    assert rows[-1].plain.split() == ["0:00", "2:00", "4:00"]


def test_no_room_is_an_error():
    with pytest.raises(InvalidArgument, match="chart: width and height are 15 and 9; expected at least 16 and 5"):
        chart([], 15, 9)


def test_without_colours_lines_are_told_apart_by_what_they_are_made_of():
    lines = [line([3, 2, 1], "train"), line([1, 2, 3], "valid"), line([2, 2, 2], "test")]
    rows = chart(lines, 40, 12, colours=False)
    drawn = "".join(row.plain for row in rows[:-2])
    assert braille(rows) and "o" in drawn and "+" in drawn
    assert legend(lines, colours=False).plain == "━ train  o valid  + test"
