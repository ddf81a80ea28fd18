"""Pictures of schedules."""

from typing import TYPE_CHECKING

from stoker.errors import InvalidArgument, MissingExtra
from stoker.schedule._compose import Arithmetic, Curve, Then, Warmup
from stoker.schedule._curves import InverseSqrt, Multistep, Noam, Step
from stoker.schedule._schedule import ScheduleLike, as_schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 2000  # more than a screen can show


def plot(*schedules: ScheduleLike, steps: int | None = None, ax: "Axes | None" = None) -> "Axes":
    """Draws schedules over the updates `0 … steps` with matplotlib (`stoker[plot]`) and returns the axes.

    >>> from stoker import schedule
    >>> schedule.plot(schedule.cosine(1e-2, steps=80, warmup=8), schedule.constant(5e-3)).get_xlabel()
    'update'

    Where no `steps` are given, a little more than the longest of them needs.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error
    lines = [as_schedule(each) for each in schedules]
    if not lines:
        raise InvalidArgument("plot: expected at least one schedule, got none")
    if steps is None:
        steps = max(length(each.curve) for each in lines) * 21 // 20
    if steps < 1:
        raise InvalidArgument(f"plot: steps is {steps}; expected at least 1")
    axes = plt.subplots(figsize=(7, 3.5), layout="constrained")[1] if ax is None else ax
    updates = list(range(0, steps + 1, max(1, steps // _POINTS)))
    for line in lines:
        axes.plot(updates, [line(update) for update in updates], label=repr(line))
    axes.set_xlabel("update")
    axes.set_ylabel("value")
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)  # above the lines
    return axes


def length(curve: Curve) -> int:
    """How many updates show what a curve does: until its end where it has one, else enough of it."""
    if isinstance(curve, Then):
        return curve.at + length(curve.second)
    if isinstance(curve, Warmup):
        return curve.steps + length(curve.after)
    if isinstance(curve, Arithmetic):
        return max(length(curve.left), length(curve.right))
    if isinstance(curve, Step):
        return 4 * curve.every
    if isinstance(curve, Multistep):
        return max(curve.milestones, default=0) * 5 // 4 + 1
    if isinstance(curve, InverseSqrt | Noam):
        return 8 * (curve.warmup + 1)
    return getattr(curve, "steps", 100)
