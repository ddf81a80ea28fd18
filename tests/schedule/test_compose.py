"""Schedules made of schedules: what each combination means at every update."""

import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import schedule
from stoker.errors import InvalidArgument
from tests.schedule.strategies import any_schedule, rates

quick = settings(deadline=None, max_examples=60)
updates = st.integers(0, 200)


@quick
@given(any_schedule, any_schedule, st.integers(0, 60), updates)
def test_then_lets_the_second_count_from_its_own_zero(first, second, at, update):
    both = first.then(second, at=at)
    assert both(update) == (first(update) if update < at else second(update - at))


@quick
@given(any_schedule, any_schedule, updates, st.sampled_from([operator.add, operator.sub, operator.mul]))
def test_arithmetic_is_arithmetic_at_every_update(left, right, update, sign):
    assert sign(left, right)(update) == sign(left(update), right(update))


@quick
@given(any_schedule, rates, updates)
def test_numbers_stand_on_either_side(curve, number, update):
    value = curve(update)
    assert (curve * number)(update) == (number * curve)(update) == value * number
    assert (curve + number)(update) == (number + curve)(update) == value + number
    assert (curve - number)(update) == value - number and (number - curve)(update) == number - value
    assert (-curve)(update) == -value and (curve / 4)(update) == value / 4


def test_division():
    assert (1 / schedule.constant(4))(0) == 0.25
    with pytest.raises(InvalidArgument, match=r"1.0 / schedule.linear\(1.0, 0.0, 2\) has no finite value at update 2"):
        (1 / schedule.linear(1, 0, 2))(2)


@quick
@given(any_schedule, st.integers(0, 20), updates)
def test_warm_up_leads_to_where_the_other_begins(curve, steps, update):
    warm = schedule.warmup(curve, steps=steps)
    if update < steps:
        assert warm(update) == pytest.approx(curve(0) * (update + 1) / (steps + 1), rel=1e-12)
    else:
        assert warm(update) == curve(update - steps)


def test_places_before_the_first_update_are_refused():
    with pytest.raises(InvalidArgument, match="then: at is -1; expected at least 0"):
        schedule.constant(1).then(2, at=-1)
    with pytest.raises(InvalidArgument, match="warmup: steps is -1; expected at least 0"):
        schedule.warmup(1.0, steps=-1)
