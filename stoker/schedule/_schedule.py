"""Schedules: a value for every update, functions that build them, and their plots.

In all builders `updates` is the number of updates from the first to the last value, warm-up included; `steps` is
accepted as another name for it. A warm-up of n updates gives `peak * (update + 1) / (n + 1)` at updates 0 … n - 1,
so no update is spent at zero, and the peak at update n.
"""

import json
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Union

from stoker.config import Config
from stoker.errors import ConfigError, InvalidArgument, MissingExtra, WrongType
from stoker.schedule import _curves as curves
from stoker.schedule._curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _operators(sign: str) -> tuple[Callable[[Any, Any], "Schedule"], Callable[[Any, Any], "Schedule"]]:
    """The methods behind `schedule + other` and `other + schedule`."""

    def combine(left: Any, right: Any) -> "Schedule":
        for side in (left, right):
            if not isinstance(side, Schedule | Real) or isinstance(side, bool):
                return NotImplemented
        return Schedule(curves.Arithmetic(as_schedule(left).curve, sign, as_schedule(right).curve))  # pyright: ignore[reportArgumentType]

    return combine, lambda self, other: combine(other, self)


class Schedule(Config):
    """A value for every update, counted from 0; after its end it keeps its last value.

    >>> from stoker import schedule
    >>> warm = schedule.cosine(1e-2, updates=80, warmup=8)
    >>> warm(8), warm(80), warm(1000)
    (0.01, 0.0, 0.0)
    >>> 0.1 * warm
    0.1 * schedule.cosine(0.01, steps=80, warmup=8)
    >>> Schedule.from_dict(warm.to_dict()) == warm
    True

    The builders of `stoker.schedule` make schedules; `then`, `+`, `-`, `*` and `/` (also with numbers) combine them.
    A schedule is a `Config`: it can be compared, saved, loaded and used as a field of another config. It prints as
    code that makes it; runs record this text, so it keeps the older name `steps` for `updates`.
    """

    curve: Curve

    def __call__(self, update: int) -> float:
        """The value at an update, a pure function of its number."""
        if type(update) is not int or update < 0:
            update = _check_update(update)
        try:
            value = self.curve(update)
            if type(value) is float and math.isfinite(value):
                return value
        except (OverflowError, ZeroDivisionError):
            value = math.nan
        if not isinstance(value, Real):  # a function that the user wrote may return anything
            raise WrongType(f"{self!r} gives {value!r} at update {update}; expected a number")
        if not math.isfinite(value):
            raise InvalidArgument(f"{self!r} has no finite value at update {update}")
        return float(value)

    def then(self, other: "ScheduleLike", *, at: int) -> "Schedule":
        """This schedule until update `at`, then the other one, which counts from its own 0.

        >>> from stoker import schedule
        >>> both = schedule.constant(0.1).then(schedule.linear(0.1, 0.0, updates=4), at=10)
        >>> both(9), both(10), both(12), both(14)
        (0.1, 0.1, 0.05, 0.0)
        """
        return Schedule(curves.Then(self.curve, as_schedule(other).curve, at))

    def plot(self, *, updates: int | None = None, ax: "Axes | None" = None, steps: int | None = None) -> "Axes":
        """Draws the schedule with matplotlib and returns the axes; see `stoker.schedule.plot`."""
        return plot(self, updates=updates, ax=ax, steps=steps)

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __truediv__, __rtruediv__ = _operators("/")

    def __neg__(self) -> "Schedule":
        return -1.0 * self

    def __repr__(self) -> str:
        return _code(self.curve)

    @classmethod
    def _from_word(cls, word: str) -> "Schedule":
        """Reads a schedule from a command line: a number, or the JSON of `to_dict`."""
        data = json.loads(word)
        return cls.from_dict(data) if isinstance(data, dict) else as_schedule(data)


ScheduleLike = Union[float, Schedule, Callable[[int], float]]  # noqa: UP007


def as_schedule(value: ScheduleLike) -> Schedule:
    """Makes a schedule of a number, a function of the update number, or a schedule (returned as it is).

    >>> as_schedule(0.1)
    schedule.constant(0.1)
    >>> as_schedule(lambda update: 1 / (1 + update))(3)
    0.25

    A schedule made of a function can be used and combined, but not saved.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, Real) and not isinstance(value, bool):
        return Schedule(curves.Constant(float(value)))
    if callable(value) and not isinstance(value, type):
        return Schedule(curves.Function(value))
    raise WrongType(
        f"expected a number, a schedule, or a function from the number of an update to a number; "
        f"got {value!r}, a {type(value).__name__}"
    )


def _check_update(update: Any) -> int:
    try:
        update = operator.index(update)
    except TypeError:
        raise WrongType(f"the number of an update is an int, got {update!r}") from None
    if update < 0:
        raise InvalidArgument(f"updates are counted from 0, got {update}")
    return update


# --- builders


def _length(builder: str, updates: int | None, steps: int | None) -> int:
    """The length of a schedule, given as `updates` or, by its older name, as `steps`."""
    if updates is not None and steps is not None:
        raise InvalidArgument(
            f"schedule.{builder}: got updates={updates} and steps={steps}; they mean the same, give one"
        )
    length = steps if updates is None else updates
    if length is None:
        raise InvalidArgument(f"schedule.{builder}: the length is missing; write updates=...")
    if isinstance(length, bool) or not isinstance(length, Integral):
        raise ConfigError(f"{'updates' if steps is None else 'steps'}: expected int, got {length!r}")
    return int(length)


def constant(value: float) -> Schedule:
    """The same value at every update.

    >>> constant(0.1)(1000)
    0.1
    """
    return Schedule(curves.Constant(value))


def linear(start: float, end: float, updates: int | None = None, *, steps: int | None = None) -> Schedule:
    """A straight line from start to end.

    >>> down = linear(1.0, 0.0, updates=4)
    >>> [down(update) for update in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return Schedule(curves.Linear(start, end, _length("linear", updates, steps)))


def cosine(
    peak: float,
    *,
    updates: int | None = None,
    warmup: int = 0,
    end: float = 0.0,
    restarts: int = 0,
    growth: float = 1.0,
    steps: int | None = None,
) -> Schedule:
    """Half a cosine wave from the peak down to `end`, after a linear warm-up.

    >>> warm = cosine(1e-2, updates=80, warmup=8)
    >>> warm(0) < warm(8) == 1e-2 > warm(79) > warm(80) == 0.0
    True
    >>> cycles = cosine(1.0, updates=70, restarts=2, growth=2)  # cycles of 10, 20 and 40 updates
    >>> cycles(0), cycles(10), cycles(30), cycles(70)
    (1.0, 1.0, 1.0, 0.0)

    Each of the `restarts` begins at the peak again, and each cycle is `growth` times as long as the one before it.
    Cycles are whole updates and together fill `updates`. After the end the value stays at `end`.
    """
    length = _length("cosine", updates, steps)
    return Schedule(curves.Cosine(peak, steps=length, warmup=warmup, end=end, restarts=restarts, growth=growth))


def exponential(start: float, *, gamma: float, end: float | None = None) -> Schedule:
    """Multiplies the value by gamma after every update, forever or until it reaches `end`.

    >>> half = exponential(1.0, gamma=0.5, end=0.1)
    >>> [half(update) for update in range(5)]
    [1.0, 0.5, 0.25, 0.125, 0.1]
    """
    return Schedule(curves.Exponential(start, gamma=gamma, end=end))


def step(start: float, *, every: int, gamma: float = 0.1) -> Schedule:
    """Multiplies the value by gamma after every `every` updates.

    >>> stairs = step(1.0, every=2, gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    return Schedule(curves.Step(start, every=every, gamma=gamma))


def multistep(start: float, *, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Multiplies the value by gamma at each milestone.

    >>> stairs = multistep(1.0, milestones=[1, 4], gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 0.5, 0.5, 0.5, 0.25]
    """
    return Schedule(curves.Multistep(start, milestones=tuple(milestones), gamma=gamma))


def polynomial(
    start: float, *, updates: int | None = None, end: float = 0.0, power: float = 1.0, steps: int | None = None
) -> Schedule:
    """From start to end, with the remaining fraction of updates to the power `power`.

    >>> square = polynomial(1.0, updates=4, power=2)
    >>> [square(update) for update in range(5)]
    [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """
    return Schedule(curves.Polynomial(start, steps=_length("polynomial", updates, steps), end=end, power=power))


def one_cycle(
    peak: float,
    *,
    updates: int | None = None,
    rise: float = 0.3,
    start: float | None = None,
    end: float | None = None,
    shape: Literal["cosine", "linear"] = "cosine",
    steps: int | None = None,
) -> Schedule:
    """Up to the peak during a fraction `rise` of the updates, then down to almost zero.

    >>> cycle = one_cycle(1.0, updates=11, rise=0.5, shape="linear", start=0.0, end=0.0)
    >>> cycle(0), cycle(10), cycle(11)
    (0.0, 0.0, 0.0)

    Matches torch's `OneCycleLR`: `start` defaults to `peak / 25` and `end` to `start / 10_000`, and the last of the
    updates, not the one after it, has the value `end`.
    """
    length = _length("one_cycle", updates, steps)
    return Schedule(curves.OneCycle(peak, steps=length, rise=rise, start=start, end=end, shape=shape))


def inverse_sqrt(peak: float, *, warmup: int) -> Schedule:
    """A linear warm-up to the peak at update `warmup`, then proportional to 1 / sqrt(update + 1), without an end.

    >>> slow = inverse_sqrt(1.0, warmup=3)
    >>> slow(0), slow(3), slow(15)
    (0.25, 1.0, 0.5)
    """
    return Schedule(curves.InverseSqrt(peak, warmup=warmup))


def noam(width: int, *, warmup: int, scale: float = 1.0) -> Schedule:
    """The schedule of "Attention Is All You Need" for a model of a width; it counts updates from 1 as the paper does.

    >>> first = noam(64, warmup=4)
    >>> first(3)  # the highest: 64 ** -0.5 * 4 ** -0.5
    0.0625

    The highest value is at update `warmup - 1`.
    """
    return Schedule(curves.Noam(width, warmup=warmup, scale=scale))


def warmup_stable_decay(
    peak: float,
    *,
    updates: int | None = None,
    warmup: int,
    decay: int,
    end: float = 0.0,
    shape: Literal["linear", "cosine", "sqrt"] = "linear",
    steps: int | None = None,
) -> Schedule:
    """A linear warm-up, then the peak, then down to `end` in the last `decay` updates.

    >>> trapezoid = warmup_stable_decay(1.0, updates=10, warmup=3, decay=4)
    >>> [trapezoid(update) for update in range(11)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    The decay is linear, a cosine, or (`"sqrt"`) proportional to the square root of the updates since it began.
    """
    length = _length("warmup_stable_decay", updates, steps)
    return Schedule(curves.WarmupStableDecay(peak, steps=length, warmup=warmup, decay=decay, end=end, shape=shape))


def warmup(schedule: ScheduleLike, *, updates: int | None = None, steps: int | None = None) -> Schedule:
    """A linear warm-up to the first value of a schedule, and then that schedule, which counts from its own 0.

    >>> warm = warmup(step(1.0, every=2, gamma=0.5), updates=3)
    >>> [warm(update) for update in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]
    """
    return Schedule(curves.Warmup(as_schedule(schedule).curve, _length("warmup", updates, steps)))


# --- as code


def _code(curve: Curve) -> str:
    """The expression that makes a schedule of this curve."""
    if isinstance(curve, curves.Arithmetic):
        # Of two constants one must be spelled out: Python would add bare numbers itself.
        bare = not isinstance(curve.right, curves.Constant)
        return f"{_operand(curve.left, bare=bare)} {curve.operator} {_operand(curve.right, bare=True)}"
    if isinstance(curve, curves.Then):
        first = f"({_code(curve.first)})" if isinstance(curve.first, curves.Arithmetic) else _code(curve.first)
        return f"{first}.then({_code(curve.second)}, at={curve.at})"
    if isinstance(curve, curves.Warmup):
        return f"schedule.warmup({_code(curve.after)}, steps={curve.steps})"
    if isinstance(curve, curves.Function):
        return f"schedule.as_schedule({getattr(curve.call, '__qualname__', repr(curve.call))})"
    settings = []
    for field in fields(curve):
        value = getattr(curve, field.name)
        if not field.kw_only:
            settings.append(repr(value))
        elif value != field.default:
            settings.append(f"{field.name}={value!r}")
    return f"schedule.{curve.builder_name()}({', '.join(settings)})"


def _operand(curve: Curve, *, bare: bool) -> str:
    if isinstance(curve, curves.Constant) and bare:
        return repr(curve.value)
    return f"({_code(curve)})" if isinstance(curve, curves.Arithmetic) else _code(curve)


# --- plots

_MAX_POINTS = 2000  # more than the pixels across a plot


def plot(
    *schedules: ScheduleLike, updates: int | None = None, ax: "Axes | None" = None, steps: int | None = None
) -> "Axes":
    """Draws schedules over the updates `0 … updates` with matplotlib (`stoker[plot]`) and returns the axes.

    >>> from stoker import schedule
    >>> schedule.plot(schedule.cosine(1e-2, updates=80, warmup=8), schedule.constant(5e-3)).get_xlabel()
    'update'

    Without `updates`, the plot ends a little after the longest schedule.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtra('plot needs matplotlib: pip install "stoker[plot]"') from error
    lines = [as_schedule(each) for each in schedules]
    if not lines:
        raise InvalidArgument("plot: expected at least one schedule, got none")
    if updates is None and steps is None:
        length = max(_natural_length(each.curve) for each in lines) * 21 // 20
    else:
        length = _length("plot", updates, steps)
    if length < 1:
        raise InvalidArgument(f"plot: updates is {length}; expected at least 1")
    axes = plt.subplots(figsize=(7, 3.5), layout="constrained")[1] if ax is None else ax
    points = list(range(0, length + 1, max(1, length // _MAX_POINTS)))
    for line in lines:
        axes.plot(points, [line(update) for update in points], label=repr(line))
    axes.set_xlabel("update")
    axes.set_ylabel("value")
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False)  # above the lines
    return axes


def _natural_length(curve: Curve) -> int:
    """The updates that show what a curve does: until its end, or enough of it if it has none."""
    if isinstance(curve, curves.Then):
        return curve.at + _natural_length(curve.second)
    if isinstance(curve, curves.Warmup):
        return curve.steps + _natural_length(curve.after)
    if isinstance(curve, curves.Arithmetic):
        return max(_natural_length(curve.left), _natural_length(curve.right))
    if isinstance(curve, curves.Step):
        return 4 * curve.every
    if isinstance(curve, curves.Multistep):
        return max(curve.milestones, default=0) * 5 // 4 + 1
    if isinstance(curve, curves.InverseSqrt | curves.Noam):
        return 8 * (curve.warmup + 1)
    return getattr(curve, "steps", 100)
