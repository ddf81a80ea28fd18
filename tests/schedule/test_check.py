"""Refusals speak of the builder, by the name the user knows."""

import pytest

from stoker import schedule
from stoker.errors import InvalidArgument
from stoker.schedule._check import check, name_of


def test_the_name_is_the_builders():
    names = [name_of(each.curve) for each in (schedule.noam(8, warmup=1), schedule.one_cycle(1, steps=4))]
    assert names == ["noam", "one_cycle"] and all(hasattr(schedule, name) for name in names)


def test_a_value_under_its_least_is_refused_and_the_least_is_not():
    curve = schedule.linear(1, 0, 5).curve
    check(curve, steps=5)
    with pytest.raises(InvalidArgument, match=r"^schedule\.linear: steps is 5; expected at least 6$"):
        check(curve, steps=6)
