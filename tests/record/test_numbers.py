"""Numbers in order: against the obvious answers, found by going through everything."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Best, Event
from stoker.record._numbers import Numbers
from tests.record.stories import same

values = st.sampled_from([0.0, 1.0, -1.0, 0.5, math.nan, math.inf, -math.inf]) | st.floats()
steps = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(["train", "valid", "log", "progress"]), values), max_size=30
)


@settings(deadline=None)
@given(steps)
def test_answers_are_those_of_a_search_through_all_events(steps):
    numbers = Numbers()
    events = [
        Event(kind, 0.0, epoch=epoch, update=update, values={"x": value})
        for update, (epoch, kind, value) in enumerate(sorted(steps, key=lambda step: step[0]))
    ]
    for event in events:
        numbers.add(event)
    final = [event for event in events if event.kind != "progress"]
    assert [update for update, _ in numbers.points.get("x", [])] == [event.update for event in final]
    latest = {event.epoch: event.values["x"] for event in final}
    assert same(numbers.series("x"), list(latest.values()))
    comparable = [event for event in final if not math.isnan(event.values["x"])]
    for direction, choose in (("min", min), ("max", max)):
        found = choose(comparable, key=lambda event: event.values["x"], default=None)  # the first of equal ones
        expected = Best(found.epoch, found.update, found.values["x"], "x") if found else None
        assert numbers.best("x", direction) == expected


def test_an_epochs_event_repeats_nothing_and_adds_what_is_new():
    numbers = Numbers()
    numbers.add(Event("train", 0.0, epoch=1, update=5, values={"a": 1.0, "b": math.nan}))
    numbers.add(Event("epoch", 0.0, epoch=1, update=6, values={"a": 1.0, "b": math.nan, "c": 3.0}))
    assert numbers.points["a"] == [(5, 1.0)] and len(numbers.points["b"]) == 1 and numbers.points["c"] == [(6, 3.0)]
    assert list(numbers.columns) == ["a", "b", "c"]


def test_two_equal_validations_are_two():
    numbers = Numbers()
    for update in (5, 10):
        numbers.add(Event("valid", 0.0, epoch=1, update=update, values={"a": 1.0}))
    assert numbers.points["a"] == [(5, 1.0), (10, 1.0)] and numbers.series("a") == [1.0]


def test_before_the_first_epoch_there_is_no_row():
    numbers = Numbers()
    numbers.add(Event("log", 0.0, values={"a": 1.0}))
    assert numbers.points["a"] == [(0, 1.0)] and numbers.rows == {} and numbers.series("a") == []
    assert numbers.best("a", "min") == Best(0, 0, 1.0, "a")
