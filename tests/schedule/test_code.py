"""A schedule prints as the code that makes it."""

import pytest
from hypothesis import given, settings

from stoker import schedule
from tests.schedule.strategies import any_schedule


@settings(deadline=None, max_examples=150)
@given(any_schedule)
def test_the_code_makes_the_same_schedule(curve):
    assert eval(repr(curve), {"schedule": schedule}) == curve


@pytest.mark.parametrize(
    ("curve", "text"),
    [
        (schedule.cosine(1e-2, steps=80, warmup=8), "schedule.cosine(0.01, steps=80, warmup=8)"),
        (schedule.linear(0, 1, 5), "schedule.linear(0.0, 1.0, 5)"),
        (0.1 * schedule.step(1, every=3) + 2, "(0.1 * schedule.step(1.0, every=3)) + 2.0"),
        (schedule.constant(1) * 2, "schedule.constant(1.0) * 2.0"),
        (schedule.constant(1).then(3, at=4), "schedule.constant(1.0).then(schedule.constant(3.0), at=4)"),
        (schedule.warmup(1, steps=4), "schedule.warmup(schedule.constant(1.0), steps=4)"),
        (schedule.as_schedule(abs), "schedule.as_schedule(abs)"),
    ],
)
def test_it_is_short(curve, text):
    assert repr(curve) == text
