"""The points of curves, no more of them than a screen can show."""

import numpy as np
import pytest
from stoker.view.ui._points import Wish, ascending, series, within

from stoker.record import Points


def points(update, value=None):
    update = np.asarray(update, dtype=float)
    return Points(update, update // 10, update + 1000, np.asarray(update if value is None else value, dtype=float))


class Run:
    """What `series` asks of a run."""

    def __init__(self, **curves):
        self.curves, self.names = curves, list(curves)

    def points(self, name, *, source="all"):
        return self.curves.get(name, points([]))


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (-np.inf, np.inf, [10, 20, 30, 40]),
        (20, 30, [10, 20, 30, 40]),
        (21, 29, [20, 30]),
        (25, np.inf, [20, 30, 40]),
        (-np.inf, 5, [10]),
        (50, 60, [40]),
        (30, 20, [20, 30]),
    ],
)
def test_a_part_of_a_curve_goes_on_to_the_edges(start, end, found):
    assert within(points([10, 20, 30, 40]), "update", start, end).update.tolist() == found


def test_of_nothing_a_part_is_nothing():
    assert len(within(points([]), "update", 1, 2)) == len(ascending(points([]), "time")) == 0


def test_a_clock_that_was_set_back_turns_no_curve_round():
    jumped = Points(np.array([1.0, 2, 3]), np.ones(3), np.array([5.0, 9, 7]), np.array([0.1, 0.2, 0.3]))
    found = series(Run(a=jumped), Wish(("a",), by="time"))["a"]  # pyright: ignore
    assert found == {"x": [5, 7, 9], "y": [0.1, 0.3, 0.2]}


def test_gaps_are_none_and_whole_numbers_are_short():
    found = series(Run(a=points([1, 2, 3, 4], [np.nan, 1.5, np.inf, -np.inf])), Wish(("a",)))["a"]
    assert found == {"x": [1, 2, 3, 4], "y": [None, 1.5, None, None]}
    assert [type(x) for x in found["x"]] == [int] * 4


def test_numbers_beyond_what_is_whole_stay_as_they_are():
    assert series(Run(a=points([1], [1e300])), Wish(("a",)))["a"]["y"] == [1e300]
    assert series(Run(a=points([1], [-0.25])), Wish(("a",)))["a"]["y"] == [-0.25]


def test_a_million_points_become_as_many_as_were_wished_for():
    value = np.sin(np.arange(1_000_000) / 1000)
    value[123_456], value[654_321] = 7.0, -7.0
    found = series(Run(a=points(np.arange(1_000_000), value)), Wish(("a",), most=1000))["a"]
    assert 500 <= len(found["y"]) <= 1000 and max(found["y"]) == 7.0 and min(found["y"]) == -7.0
    near = series(Run(a=points(np.arange(1_000_000), value)), Wish(("a",), most=1000, start=123_450, end=123_460))
    assert near["a"]["x"] == list(range(123_449, 123_462))
