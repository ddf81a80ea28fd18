import pytest

from stoker import InvalidArgument
from stoker.callbacks import StopOnTime, on
from tests.callbacks.fits import train


class Clock:
    """Seconds that go on when the test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def tick(self, ctx):
        self.now += 10


@pytest.mark.parametrize(("limit", "batches"), [({"seconds": 30}, 3), ({"seconds": 31}, 4), ({"minutes": 1}, 6)])
def test_it_stops_after_the_first_batch_past_the_limit(limit, batches):
    clock = Clock()
    ctx = train([on(update=clock.tick), StopOnTime(**limit, clock=clock)], epochs=9, batches=4)
    assert ctx.update == batches and ctx.stopping


def test_the_reason():
    clock = Clock()
    ctx = train([on(update=clock.tick), StopOnTime(minutes=1.5, clock=clock)], epochs=9, batches=4)
    assert ctx.stopping == "The time is up (1.5 minutes) at epoch 3, batch 1"
    ctx = train([on(update=clock.tick), StopOnTime(seconds=5, clock=clock)])
    assert ctx.stopping == "The time is up (5 seconds) at epoch 1, batch 1"


def test_a_second_fit_has_its_own_time():
    clock = Clock()
    callback = StopOnTime(seconds=1000, clock=clock)
    for _ in range(3):
        ctx = train([on(update=clock.tick), callback], epochs=20, batches=4)
        assert ctx.stopping is None


def test_time_in_a_validation_counts():
    clock = Clock()
    ctx = train([on(epoch_end=lambda ctx: [clock.tick(ctx) for _ in range(10)]), StopOnTime(seconds=100, clock=clock)])
    assert (ctx.epoch, ctx.batch_number) == (2, 1)


def test_the_usual_clock_is_monotonic():
    assert train([StopOnTime(minutes=60)]).stopping is None
    assert train([StopOnTime(seconds=1e-9)]).update == 1


@pytest.mark.parametrize(
    ("given", "text"), [({}, "either"), ({"minutes": 1, "seconds": 1}, "either"), ({"seconds": 0}, "above 0")]
)
def test_one_limit_above_zero(given, text):
    with pytest.raises(InvalidArgument, match=text):
        StopOnTime(**given)


def test_a_resumed_fit_has_its_time_anew():
    clock = Clock()
    callback = StopOnTime(seconds=50, clock=clock)
    assert callback.transient and callback.state_dict() == {}
    assert train([on(update=clock.tick), callback], epochs=1, batches=4).stopping is None
    assert train([on(update=clock.tick), callback], epochs=1, batches=4).stopping is None
