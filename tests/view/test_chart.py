"""Charts on a terminal: what is drawn where, tick labels, and any values in any size."""

import math
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.errors import InvalidArgument
from stoker.view._chart import Axis  # an algorithm of its own: the ticks of an axis
from stoker.view.console import Line, bars, chart, legend

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def line(values, name="loss", style="red"):
    return Line(name, np.arange(1.0, len(values) + 1), np.array(values, float), style)


def plain(rows):
    return [row.plain for row in rows]


def braille(rows):
    return "".join(letter for row in plain(rows) for letter in row if 0x2801 <= ord(letter) < 0x2900)


def bar_heights(rows, letter="█"):
    """How many full cells each column has."""
    cells = [row.split("┤")[-1].split("│")[-1] for row in plain(rows)[:-2]]
    widest = max(map(len, cells))
    return [sum(row.ljust(widest)[column] == letter for row in cells) for column in range(widest)]


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([chart, bars]),
    st.lists(st.lists(ANY_FLOAT, max_size=50), max_size=3),
    st.integers(16, 60),
    st.integers(5, 20),
    st.fixed_dictionaries({"ascii_only": st.booleans(), "colors": st.booleans()}),
    st.fixed_dictionaries({"log": st.booleans(), "times": st.booleans()}),
)
def test_any_values_fill_exactly_the_given_size(draw, many, width, height, style, axes):
    axes = axes if draw is chart else {}
    rows = plain(draw([line(values) for values in many], width, height, **style, **axes))
    assert len(rows) == height and max(map(len, rows)) <= width
    if style["ascii_only"]:
        assert "".join(rows).isascii()


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5),
    st.sampled_from(["number", "log", "count", "time"]),
    st.integers(1, 12),
)
@example([5e-324], "log", 1)
@example([3e-308], "log", 1)
def test_ticks_are_on_the_axis_in_order_and_few(values, scale, most):
    axis = Axis.around([np.array(values)], scale)
    ticks = list(axis.ticks(most))
    assert ticks == sorted(ticks) and len(ticks) <= most + 1
    assert all(-1e-6 <= position <= 1 + 1e-6 for position in axis.position(ticks))
    shown = [value for value in values if value > sys.float_info.min or scale != "log"]
    assert all(-1e-9 <= position <= 1 + 1e-9 for position in axis.position(shown))


@pytest.mark.parametrize(
    ("axis", "most", "labels"),
    [
        (Axis(0.0, 1.0), 5, ["0.0", "0.5", "1.0"]),
        (Axis(0.912, 0.987), 4, ["0.92", "0.94", "0.96", "0.98"]),
        (Axis(-3.0, 3.0), 4, ["-2", "0", "2"]),
        (Axis(1, 4, "count"), 8, ["1", "2", "3", "4"]),
        (Axis(0, 2_400_000, "count"), 3, ["0", "1M", "2M"]),
        (Axis(1e-6, 1.0, "log"), 3, ["1e-06", "0.001", "1"]),
        (Axis(2.1, 2.4, "log"), 4, ["2.1", "2.2", "2.3", "2.4"]),
        (Axis(0, 7200, "time"), 4, ["0:00", "1:00:00", "2:00:00"]),
        (Axis(0, 10 * 86400, "time"), 4, ["0:00", "3 d 0:00:00", "6 d 0:00:00", "9 d 0:00:00"]),
    ],
    ids=["unit", "narrow", "negative", "few", "millions", "decades", "narrow log", "hours", "days"],
)
def test_tick_labels_are_round_and_short(axis, most, labels):
    assert list(axis.ticks(most).values()) == labels


def test_a_line_falls_from_the_top_left_to_the_bottom_right():
    rows = plain(chart([line([3, 2, 1])], 40, 12))
    assert rows[0][3] in "⠱⠑⠉⢄⠣" and rows[9].rstrip()[-1] != " "
    assert "3 ┤" in rows[0] and "1 ┤" in rows[9] and rows[11].split() == ["1", "2", "3"]


def test_nan_interrupts_a_line_and_a_single_point_is_visible():
    whole = braille(chart([line([1, 2, 3, 4, 5])], 40, 10))
    broken = chart([line([1, 2, math.nan, 4, math.inf])], 40, 10)
    assert 0 < len(braille(broken)) < len(whole)
    assert sum(row.count("•") for row in plain(broken)) == 1


def test_a_log_axis_leaves_out_values_that_are_not_positive():
    rows = plain(chart([line([-1, 0, 1, 10, 100])], 40, 14, log=True))
    assert [row.partition("┤")[0].strip() for row in rows if "┤" in row] == ["100", "10", "1"]
    assert rows[-1].split() == ["3", "4", "5"]


def test_later_lines_cover_earlier_ones_and_named_lines_the_background():
    both = chart([line([1, 3], "a", "red"), line([3, 1], "b", "blue")], 40, 11)
    assert {"red", "blue"} <= {span.style for row in both for span in row.spans}
    hidden = chart([line([1, 3], "", "red"), line([1, 3], "b", "blue")], 40, 11)
    assert "red" not in {span.style for row in hidden for span in row.spans}


def test_bars_are_as_high_as_their_values():
    heights = bar_heights(bars([line([4, 2, 1])], 24, 10))
    assert heights[0] == 8 and {4, 2} <= set(heights)


def test_bars_show_the_latest_epochs_if_not_all_fit():
    shown = bars([line([1.0] * 50)], 24, 8)[-1].plain.split()
    assert "49" in shown and "1" not in shown


def test_bars_of_values_far_from_zero_start_near_them():
    assert all("0.0 " not in row for row in plain(bars([line([0.91, 0.93, 0.95])], 40, 10)))


@pytest.mark.parametrize("draw", [chart, bars])
def test_too_small_a_size_is_an_error(draw):
    for width, height in ((15, 9), (40, 4)):
        message = f"{draw.__name__}: width and height are {width} and {height}; expected at least 16 and 5"
        with pytest.raises(InvalidArgument, match=message):
            draw([], width, height)


def test_without_colors_lines_and_bars_are_drawn_with_letters():
    lines = [line([3, 2, 1], "train"), line([1, 2, 3], "valid"), line([2, 2, 2], "test")]
    rows = chart(lines, 40, 12, colors=False)
    drawn = "".join(plain(rows)[:-2])
    assert braille(rows) and "o" in drawn and "+" in drawn
    assert legend(lines, colors=False).plain == "━ train  o valid  + test"
    both = bars([line([4, 2, 1]), line([4, 2, 1])], 30, 10, colors=False)
    assert max(bar_heights(both)) == max(bar_heights(both, "o")) == 8
    assert "*" in bars(lines, 30, 10, ascii_only=True)[0].plain
