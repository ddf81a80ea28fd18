"""Plots of schedules."""

from typing import TYPE_CHECKING

from stoker._figure import new_pyplot_axes
from stoker.errors import InvalidArgument
from stoker.schedule._schedule import ScheduleLike, as_schedule, find_length, natural_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_POINTS = 2000  # more than the pixels across a plot


def plot(
    *schedules: ScheduleLike, updates: int | None = None, ax: "Axes | None" = None, steps: int | None = None
) -> "Axes":
    """Draws schedules over the updates `0 … updates` with matplotlib (`stoker[plot]`) and returns the axes.

    >>> from stoker import schedule
    >>> schedule.plot(schedule.cosine(1e-2, updates=80, warmup=8), schedule.constant(5e-3)).get_xlabel()
    'update'

    Without `updates`, the plot ends a little after the longest schedule. Schedules that take their length from a fit
    are drawn for a fit of `updates`.
    """
    lines = [as_schedule(schedule) for schedule in schedules]
    if not lines:
        raise InvalidArgument("plot: expected at least one schedule, got none")
    length = find_length("plot", updates, steps)
    if length is None:
        for line in lines:
            if line.needs_length:
                raise InvalidArgument(f"plot: {line!r} takes its length from a fit; give updates=...")
        length = max(natural_length(line.curve) for line in lines) * 21 // 20
    if length < 1:
        raise InvalidArgument(f"plot: updates is {length}; expected at least 1")
    axes = new_pyplot_axes(7, 3.5) if ax is None else ax
    points = list(range(0, length + 1, max(1, length // _MAX_POINTS)))
    for line in lines:
        complete = line.with_updates(length)
        axes.plot(points, [complete(update) for update in points], label=repr(line))
    axes.set_xlabel("update")
    axes.set_ylabel("value")
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)  # above the lines
    return axes
