"""The pace, on a clock that the test moves."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.view.console._pace import Pace


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 0.5)), min_size=1, max_size=300))
def test_drawing_takes_one_percent_of_the_time_at_most(story):
    clock = Clock()
    pace = Pace(clock=clock)
    spent, drawn, last_cost = 0.0, 0, 0.0
    for wait, cost in story:
        clock.now += wait
        if pace.due():
            with pace.drawing():
                clock.now += cost
            spent, drawn, last_cost = spent + cost, drawn + 1, cost
    assert spent - last_cost <= 0.0101 * clock.now  # the last one's time to make up for it is still to come
    assert (drawn - 1) * 0.25 <= clock.now + 1e-6


def test_the_first_drawing_is_due_at_once_and_a_failed_one_counts():
    clock = Clock()
    pace = Pace(clock=clock)
    assert pace.due()
    try:
        with pace.drawing():
            clock.now += 1.0
            raise KeyError
    except KeyError:
        pass
    assert not pace.due()
    clock.now += 99.9
    assert not pace.due()
    clock.now += 0.2
    assert pace.due()
