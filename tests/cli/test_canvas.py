"""The plot for terminals: every line has its width, and points are where they belong."""

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cli._canvas import curves

points = st.lists(st.tuples(st.integers(0, 10**6), st.floats()), max_size=30)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["train/loss", "valid/loss"]), points),
    st.integers(30, 90),
    st.integers(2, 9),
    st.booleans(),
)
def test_any_numbers_fit_the_canvas(lines, width, height, plain):
    rows = curves(lines, width=width, height=height, plain=plain)
    if not any(math.isfinite(y) for line in lines.values() for _, y in line):
        assert [row.plain for row in rows] == ["no numbers to draw"]
        return
    assert len(rows) == height + 3
    assert all(len(row.plain) <= width for row in rows[: height + 2])
    assert not plain or all(row.plain.isascii() for row in rows)


def test_a_falling_line_falls():
    rows = curves({"x": [(step, -step) for step in range(100)]}, width=40, height=5)
    marks = [[place for place, mark in enumerate(row.plain) if "\u2801" <= mark <= "\u28ff"] for row in rows[:5]]
    assert all(marks) and all(max(upper) <= min(lower) for upper, lower in pairwise(marks))
    assert rows[0].plain.startswith("  0 ┤") and rows[4].plain.startswith("-99 ┤")
    assert rows[6].plain.split() == ["0", "99"]


def test_lines_are_told_apart_by_marks_where_there_are_no_colours():
    rows = curves({"a": [(0, 0), (1, 0)], "b": [(0, 1), (1, 1)]}, width=30, height=3, plain=True)
    assert set(rows[0].plain[4:].strip()) == {"o"} and set(rows[2].plain[4:].strip()) == {"*"}
    assert rows[-1].plain.split() == ["*", "a", "o", "b"]
