"""Times and sizes in words."""

import pytest

from stoker.record import duration, size, when


def test_times_and_sizes():
    assert [duration(each) for each in (-1, 59.94, 60, 3599, 3599.6, 90000)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "25 h 0 min",
    ]
    assert size(0) == "0 bytes" and size(3e12) == "3.0 TB"


@pytest.mark.parametrize("time", [None, float("nan"), float("inf"), 1e300, "then"], ids=str)
def test_a_time_that_is_none(time):
    assert when(time) == ""
