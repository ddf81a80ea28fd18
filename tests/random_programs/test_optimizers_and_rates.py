"""Every optimizer with every kind of learning rate: captured steps give the bits of eager ones, also resumed.

The fast tests take a part of all pairs: the same one in CI, and elsewhere another one in every run.
"""

import inspect
import os
import time

import pytest

from stoker import optim, schedule
from tests.random_programs import Program, check_and_report, rates
from tests.random_programs.rates import OPTIMIZERS, RATES

pytestmark = pytest.mark.cuda

# How a learning rate is given: as an argument of Learner, or by a callback.
BY_CALLBACK = ["set rate", "set rates", "reused mapping of rates", "scale rates", "scale rates each batch", "count"]
ALL = [{"rate": rate} for rate in RATES] + [{"callbacks": (name,)} for name in BY_CALLBACK]
STEP = 27  # of all ways, how far apart the ones are that a fast test takes
NO_ALGORITHMS = {"Algorithm", "Optimizer", "Wrapped"}
NO_SCHEDULES = {"Schedule", "ScheduleLike", "as_schedule", "plot"}
START = 0 if os.environ.get("CI") else time.time_ns() // 10**6


def test_every_algorithm_and_schedule_of_stoker_is_among_them():
    text = inspect.getsource(rates)
    algorithms = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)}
    assert {name for name in algorithms - NO_ALGORITHMS if f"optim.{name}" not in text} == set()
    assert {name for name in set(schedule.__all__) - NO_SCHEDULES if f"schedule.{name}(" not in text} == set()


def check_pair(place, optimizer, way):
    stops = (("exception", "train_batch_begin", 3),) if place % 2 else (("SIGINT", "train_batch_end", 5),)
    check_and_report(Program(optimizer=optimizer, samples=22, stops=stops, **way))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_gives_the_same_bits_with_some_kinds_of_learning_rates(optimizer):
    first = START + list(OPTIMIZERS).index(optimizer)
    for place in range(first, first + len(ALL), STEP):
        check_pair(place, optimizer, ALL[place % len(ALL)])


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_gives_the_same_bits_with_every_kind_of_learning_rate(optimizer):
    for place, way in enumerate(ALL):
        check_pair(place, optimizer, way)
