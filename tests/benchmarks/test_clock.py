"""The clock that all contenders call: seconds since the process was asked for, and epochs after the warm-up."""

import pytest

from benchmarks import _harness
from benchmarks._clock import Clock


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setenv(_harness._STARTED, "0.0")
    return Clock()


def test_marks_count_from_the_start_of_the_process(clock):
    clock()
    clock("whatever", a="callback gets")
    first, second = clock.marks
    assert 1e9 < first <= second  # seconds since 1970: the process is told to have started then


def test_an_epoch_is_timed_after_the_warm_up_in_stretches(clock):
    clock.marks = [100.0, 103.0, 105.0, 107.0, 109.0, 111.0]
    assert clock.rounds(1, most=2) == [2.5, 2.0]
    assert clock.rounds(2) == [2.0] * 4
    assert clock.rounds(5) == [2.0]
