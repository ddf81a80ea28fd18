"""Plots of schedules, inspected through matplotlib's own objects."""

import sys
from collections.abc import Iterator

import matplotlib
import matplotlib.pyplot as plt
import pytest

from stoker import schedule
from stoker.errors import InvalidArgument, MissingExtra


@pytest.fixture(autouse=True)
def _agg_backend() -> Iterator[None]:
    before = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


def test_the_line_shows_the_schedule():
    warm = schedule.cosine(1e-2, updates=80, warmup=8)
    axes = warm.plot()
    x, y = axes.lines[0].get_data()
    assert list(x) == list(range(85)) and list(y) == [warm(update) for update in range(85)]
    assert axes.get_xlabel() == "update" and axes.get_legend().get_texts()[0].get_text() == repr(warm)


def test_several_schedules_are_drawn_on_given_axes():
    _, mine = plt.subplots()
    axes = schedule.plot(schedule.constant(0.1), 0.2, lambda update: 1 / (1 + update), updates=50, ax=mine)
    assert axes is mine and len(axes.lines) == 3 and list(axes.lines[1].get_ydata()) == [0.2] * 51


def test_a_long_schedule_is_drawn_with_a_limited_number_of_points():
    axes = schedule.linear(1, 0, updates=10**6).plot()
    assert 1000 < len(axes.lines[0].get_xdata()) < 4000 and axes.lines[0].get_ydata()[-1] == 0.0


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        (schedule.constant(1), 100),
        (schedule.step(1, every=5), 20),
        (schedule.multistep(1, milestones=[4, 8]), 11),
        (schedule.noam(8, warmup=3), 32),
        (schedule.linear(1, 0, 7).then(schedule.linear(1, 0, 7), at=5), 12),
        (schedule.warmup(schedule.linear(1, 0, 7), updates=3), 10),
        (schedule.linear(1, 0, 7) * schedule.linear(1, 0, 9), 9),
        (schedule.exponential(1, gamma=0.5), 100),
    ],
)
def test_the_plot_ends_a_little_after_the_schedule(curve, expected):
    assert max(curve.plot().lines[0].get_xdata()) == expected * 21 // 20


def test_invalid_arguments_and_a_missing_matplotlib_raise(monkeypatch):
    with pytest.raises(InvalidArgument, match="plot: expected at least one schedule, got none"):
        schedule.plot()
    with pytest.raises(InvalidArgument, match="plot: updates is 0; expected at least 1"):
        schedule.constant(1).plot(updates=0)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtra, match=r'pip install "stoker\[plot\]"'):
        schedule.constant(1).plot()
