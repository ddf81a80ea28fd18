"""Schedules: their curves, the functions that build them, `Schedule` itself, and plots.

A curve has the settings of a schedule and computes its values. Saved schedules name a curve by its class and its fields
(`{"kind": "Cosine", "peak": 0.01, "steps": 80, ...}`), so these names are part of the file format. Builders call the
length `updates`: the number of updates from the first to the last value, warm-up included. They accept `steps` as
another name for it.
"""

import json
import math
import operator
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, fields
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Union

from stoker.config import Config
from stoker.errors import ConfigError, InvalidArgument, MissingExtra, WrongType

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_AT_LEAST_0 = ("warmup", "restarts", "decay", "gamma", "at")
_AT_LEAST_1 = ("every", "width")


class Shape(Config):
    """Base of all curves. `__call__` takes an int of 0 or more: `Schedule` checks it."""

    least_steps: ClassVar[int] = 1

    def builder_name(self) -> str:
        """The public function that makes this curve: `warmup_stable_decay` for `WarmupStableDecay`."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def __post_init__(self) -> None:
        least = {**dict.fromkeys(_AT_LEAST_0, 0), **dict.fromkeys(_AT_LEAST_1, 1), "steps": self.least_steps}
        # Not `vars(self)`: once an object's `__dict__` exists, CPython reads all its attributes more slowly.
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            self.require(name, not isinstance(value, float) or math.isfinite(value), "a finite number")
            if name in least:
                self.require(name, value >= least[name], f"at least {least[name]}")

    def require(self, name: str, holds: bool, expected: str) -> None:
        """Raises if a setting is not as expected, with an error that names the builder that the user called."""
        if not holds:
            shown, value = "updates" if name == "steps" else name, getattr(self, name)
            raise InvalidArgument(f"schedule.{self.builder_name()}: {shown} is {value}; expected {expected}")


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
        raise ConfigError(f"updates: expected int, got {length!r}")
    return int(length)


def _interpolate(start: float, end: float, fraction: float) -> float:
    """Exactly `start` at 0.0 and exactly `end` at 1.0."""
    return start * (1.0 - fraction) + end * fraction


def _cosine_fraction(fraction: float) -> float:
    """Half a cosine wave from 0 to 1: slow at both ends."""
    return (1.0 - math.cos(math.pi * fraction)) / 2.0


def _warm_up(peak: float, update: int, warmup: int) -> float:
    """No update is spent at zero: update 0 has `peak / (warmup + 1)`, update `warmup` would have the peak."""
    return peak * ((update + 1) / (warmup + 1))


# --- curves, each with its builder


class Constant(Shape):
    value: float

    def __call__(self, update: int) -> float:
        return self.value


def constant(value: float) -> "Schedule":
    """The same value at every update.

    >>> constant(0.1)(1000)
    0.1
    """
    return Schedule(Constant(value))


class Linear(Shape):
    start: float
    end: float
    steps: int

    def __call__(self, update: int) -> float:
        return _interpolate(self.start, self.end, min(update / self.steps, 1.0))


def linear(start: float, end: float, updates: int | None = None, *, steps: int | None = None) -> "Schedule":
    """A straight line from start to end.

    >>> down = linear(1.0, 0.0, updates=4)
    >>> [down(update) for update in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return Schedule(Linear(start, end, _length("linear", updates, steps)))


class Cosine(Shape):
    peak: float
    _: KW_ONLY
    steps: int
    warmup: int = 0
    end: float = 0.0
    restarts: int = 0
    growth: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("warmup", self.warmup <= self.steps, f"at most updates, which is {self.steps}")
        self.require("growth", self.growth > 0, "more than 0")
        length = self.steps - self.warmup
        fits = not self.restarts or (self.restarts < length and _is_increasing(self._cycle_starts()))
        cycles = f"cycles of at least one update, with {length} updates for all of them and growth {self.growth}"
        self.require("restarts", fits, cycles)

    def _cycle_starts(self) -> tuple[int, ...]:
        return _cycle_starts(self.steps - self.warmup, self.restarts + 1, self.growth)

    def __call__(self, update: int) -> float:
        if update >= self.steps:
            return self.end
        if update < self.warmup:
            return _warm_up(self.peak, update, self.warmup)
        start, end = self.warmup, self.steps
        if self.restarts:
            starts = self._cycle_starts()
            cycle = bisect_right(starts, update - self.warmup)
            start, end = starts[cycle - 1] + self.warmup, starts[cycle] + self.warmup
        return _interpolate(self.peak, self.end, _cosine_fraction((update - start) / (end - start)))


@lru_cache(maxsize=256)
def _cycle_starts(updates: int, cycles: int, growth: float) -> tuple[int, ...]:
    """The first update of each cycle, and the end of the last one."""
    if growth == 1.0:
        return tuple(updates * cycle // cycles for cycle in range(cycles + 1))
    if growth > 1.0:  # mirrored, so that no power overflows
        mirrored = _cycle_starts(updates, cycles, 1.0 / growth)
        return tuple(updates - start for start in reversed(mirrored))
    total = 1.0 - growth**cycles
    return tuple(round(updates * ((1.0 - growth**cycle) / total)) for cycle in range(cycles + 1))


def _is_increasing(numbers: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def cosine(
    peak: float,
    *,
    updates: int | None = None,
    warmup: int = 0,
    end: float = 0.0,
    restarts: int = 0,
    growth: float = 1.0,
    steps: int | None = None,
) -> "Schedule":
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
    return Schedule(Cosine(peak, steps=length, warmup=warmup, end=end, restarts=restarts, growth=growth))


class Exponential(Shape):
    start: float
    _: KW_ONLY
    gamma: float
    end: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("gamma", self.gamma > 0, "more than 0")
        fits = self.end is None or (self.end > self.start) == (self.gamma > 1.0)
        side = "above" if self.gamma > 1.0 else "below"
        self.require("end", fits, f"a value {side} start ({self.start}), because gamma is {self.gamma}")

    def __call__(self, update: int) -> float:
        try:
            value = self.start * self.gamma**update
        except OverflowError:
            value = math.inf
        if self.end is None:
            return value
        return min(value, self.end) if self.gamma > 1.0 else max(value, self.end)


def exponential(start: float, *, gamma: float, end: float | None = None) -> "Schedule":
    """Multiplies the value by gamma after every update, forever or until it reaches `end`.

    >>> half = exponential(1.0, gamma=0.5, end=0.1)
    >>> [half(update) for update in range(5)]
    [1.0, 0.5, 0.25, 0.125, 0.1]
    """
    return Schedule(Exponential(start, gamma=gamma, end=end))


class Step(Shape):
    start: float
    _: KW_ONLY
    every: int
    gamma: float = 0.1

    def __call__(self, update: int) -> float:
        return self.start * self.gamma ** (update // self.every)


def step(start: float, *, every: int, gamma: float = 0.1) -> "Schedule":
    """Multiplies the value by gamma after every `every` updates.

    >>> stairs = step(1.0, every=2, gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    return Schedule(Step(start, every=every, gamma=gamma))


class Multistep(Shape):
    start: float
    _: KW_ONLY
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        increasing = _is_increasing((-1, *self.milestones))
        self.require("milestones", increasing, "update numbers of 0 or more in increasing order")

    def __call__(self, update: int) -> float:
        return self.start * self.gamma ** bisect_right(self.milestones, update)


def multistep(start: float, *, milestones: Sequence[int], gamma: float = 0.1) -> "Schedule":
    """Multiplies the value by gamma at each milestone.

    >>> stairs = multistep(1.0, milestones=[1, 4], gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 0.5, 0.5, 0.5, 0.25]
    """
    return Schedule(Multistep(start, milestones=tuple(milestones), gamma=gamma))


class Polynomial(Shape):
    start: float
    _: KW_ONLY
    steps: int
    end: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("power", self.power > 0, "more than 0")

    def __call__(self, update: int) -> float:
        return _interpolate(self.end, self.start, max(1.0 - update / self.steps, 0.0) ** self.power)


def polynomial(
    start: float, *, updates: int | None = None, end: float = 0.0, power: float = 1.0, steps: int | None = None
) -> "Schedule":
    """From start to end, with the remaining fraction of updates to the power `power`.

    >>> square = polynomial(1.0, updates=4, power=2)
    >>> [square(update) for update in range(5)]
    [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """
    return Schedule(Polynomial(start, steps=_length("polynomial", updates, steps), end=end, power=power))


class OneCycle(Shape):
    peak: float
    _: KW_ONLY
    steps: int
    rise: float = 0.3
    start: float | None = None
    end: float | None = None
    shape: Literal["cosine", "linear"] = "cosine"

    least_steps = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("rise", 0.0 <= self.rise < 1.0, "a fraction of the updates, from 0 to less than 1")

    def __call__(self, update: int) -> float:
        start = self.peak / 25.0 if self.start is None else self.start
        end = start / 1e4 if self.end is None else self.end
        top, last = self.rise * self.steps - 1.0, self.steps - 1
        if update >= last:
            return end
        if update < top:
            begin, goal, fraction = start, self.peak, update / top
        else:
            begin, goal, fraction = self.peak, end, (update - top) / (last - top)
        return _interpolate(begin, goal, _cosine_fraction(fraction) if self.shape == "cosine" else fraction)


def one_cycle(
    peak: float,
    *,
    updates: int | None = None,
    rise: float = 0.3,
    start: float | None = None,
    end: float | None = None,
    shape: Literal["cosine", "linear"] = "cosine",
    steps: int | None = None,
) -> "Schedule":
    """Up to the peak during a fraction `rise` of the updates, then down to almost zero.

    >>> cycle = one_cycle(1.0, updates=11, rise=0.5, shape="linear", start=0.0, end=0.0)
    >>> cycle(0), cycle(10), cycle(11)
    (0.0, 0.0, 0.0)

    Matches torch's `OneCycleLR`: `start` defaults to `peak / 25` and `end` to `start / 10_000`, and the last of the
    updates, not the one after it, has the value `end`.
    """
    length = _length("one_cycle", updates, steps)
    return Schedule(OneCycle(peak, steps=length, rise=rise, start=start, end=end, shape=shape))


class InverseSqrt(Shape):
    peak: float
    _: KW_ONLY
    warmup: int

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return _warm_up(self.peak, update, self.warmup)
        return self.peak * math.sqrt((self.warmup + 1) / (update + 1))


def inverse_sqrt(peak: float, *, warmup: int) -> "Schedule":
    """A linear warm-up to the peak at update `warmup`, then proportional to 1 / sqrt(update + 1), without an end.

    >>> slow = inverse_sqrt(1.0, warmup=3)
    >>> slow(0), slow(3), slow(15)
    (0.25, 1.0, 0.5)
    """
    return Schedule(InverseSqrt(peak, warmup=warmup))


class Noam(Shape):
    width: int
    _: KW_ONLY
    warmup: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("warmup", self.warmup >= 1, "at least 1")

    def __call__(self, update: int) -> float:
        count = update + 1  # the paper counts from 1
        return self.scale * self.width**-0.5 * min(count**-0.5, count * self.warmup**-1.5)


def noam(width: int, *, warmup: int, scale: float = 1.0) -> "Schedule":
    """The schedule of "Attention Is All You Need" for a model of a width, with its highest value at `warmup - 1`.

    >>> first = noam(64, warmup=4)
    >>> first(3)  # the highest: 64 ** -0.5 * 4 ** -0.5
    0.0625
    """
    return Schedule(Noam(width, warmup=warmup, scale=scale))


class WarmupStableDecay(Shape):
    peak: float
    _: KW_ONLY
    steps: int
    warmup: int
    decay: int
    end: float = 0.0
    shape: Literal["linear", "cosine", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("warmup", self.warmup <= self.steps, f"at most updates, which is {self.steps}")
        rest = self.steps - self.warmup
        self.require("decay", self.decay <= rest, f"at most updates - warmup, which is {rest}")

    def __call__(self, update: int) -> float:
        if update >= self.steps:
            return self.end if self.decay else self.peak
        if update < self.warmup:
            return _warm_up(self.peak, update, self.warmup)
        if update <= self.steps - self.decay:
            return self.peak
        fraction = (update - (self.steps - self.decay)) / self.decay
        if self.shape == "cosine":
            fraction = _cosine_fraction(fraction)
        elif self.shape == "sqrt":
            fraction = math.sqrt(fraction)
        return _interpolate(self.peak, self.end, fraction)


def warmup_stable_decay(
    peak: float,
    *,
    updates: int | None = None,
    warmup: int,
    decay: int,
    end: float = 0.0,
    shape: Literal["linear", "cosine", "sqrt"] = "linear",
    steps: int | None = None,
) -> "Schedule":
    """A linear warm-up, then the peak, then down to `end` in the last `decay` updates.

    >>> trapezoid = warmup_stable_decay(1.0, updates=10, warmup=3, decay=4)
    >>> [trapezoid(update) for update in range(11)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    The decay is linear, a cosine, or (`"sqrt"`) proportional to the square root of the updates since it began.
    """
    length = _length("warmup_stable_decay", updates, steps)
    return Schedule(WarmupStableDecay(peak, steps=length, warmup=warmup, decay=decay, end=end, shape=shape))


class Function(Shape):
    """A function that the user wrote. It cannot be saved."""

    call: Callable[[int], float]

    def __call__(self, update: int) -> float:
        return self.call(update)


class Then(Shape):
    """`first` until update `at`; from there `second`, which counts from its own 0."""

    first: "Curve"
    second: "Curve"
    at: int

    def __call__(self, update: int) -> float:
        return self.first(update) if update < self.at else self.second(update - self.at)


class Warmup(Shape):
    after: "Curve"
    steps: int

    least_steps = 0

    def __call__(self, update: int) -> float:
        if update < self.steps:
            return _warm_up(self.after(0), update, self.steps)
        return self.after(update - self.steps)


def warmup(schedule: "ScheduleLike", *, updates: int | None = None, steps: int | None = None) -> "Schedule":
    """A linear warm-up to the first value of a schedule, and then that schedule, which counts from its own 0.

    >>> warm = warmup(step(1.0, every=2, gamma=0.5), updates=3)
    >>> [warm(update) for update in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]
    """
    return Schedule(Warmup(as_schedule(schedule).curve, _length("warmup", updates, steps)))


_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


class Arithmetic(Shape):
    """Two curves, combined at every update."""

    left: "Curve"
    operator: Literal["+", "-", "*", "/"]
    right: "Curve"

    def __call__(self, update: int) -> float:
        return _OPERATORS[self.operator](self.left(update), self.right(update))


# Every curve that a file can name. Reading a file imports nothing by name.
_Basic = Constant | Linear | Cosine | Exponential | Step | Multistep | Polynomial | OneCycle | InverseSqrt | Noam
Curve = Union[_Basic, WarmupStableDecay, Function, Then, Warmup, Arithmetic]  # noqa: UP007 - resolves quoted names


def _code(curve: Curve) -> str:
    """The expression that makes a schedule of this curve."""
    if isinstance(curve, Arithmetic):
        # Of two constants one must be spelled out: Python would add bare numbers itself.
        left = _operand(curve.left, bare=not isinstance(curve.right, Constant))
        return f"{left} {curve.operator} {_operand(curve.right, bare=True)}"
    if isinstance(curve, Then):
        return f"{_operand(curve.first, bare=False)}.then({_code(curve.second)}, at={curve.at})"
    if isinstance(curve, Warmup):
        return f"schedule.warmup({_code(curve.after)}, steps={curve.steps})"
    if isinstance(curve, Function):
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
    if isinstance(curve, Constant) and bare:
        return repr(curve.value)
    return f"({_code(curve)})" if isinstance(curve, Arithmetic) else _code(curve)


# --- schedules


def _operators(sign: str) -> tuple[Callable[[Any, Any], "Schedule"], Callable[[Any, Any], "Schedule"]]:
    """The methods behind `schedule + other` and `other + schedule`."""

    def combine(left: Any, right: Any) -> "Schedule":
        for side in (left, right):
            if not isinstance(side, Schedule | Real) or isinstance(side, bool):
                return NotImplemented
        return Schedule(Arithmetic(as_schedule(left).curve, sign, as_schedule(right).curve))  # pyright: ignore[reportArgumentType]

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
        return Schedule(Then(self.curve, as_schedule(other).curve, at))

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
        return Schedule(Constant(float(value)))
    if callable(value) and not isinstance(value, type):
        return Schedule(Function(value))
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
    if isinstance(curve, Then):
        return curve.at + _natural_length(curve.second)
    if isinstance(curve, Warmup):
        return curve.steps + _natural_length(curve.after)
    if isinstance(curve, Arithmetic):
        return max(_natural_length(curve.left), _natural_length(curve.right))
    if isinstance(curve, Step):
        return 4 * curve.every
    if isinstance(curve, Multistep):
        return max(curve.milestones, default=0) * 5 // 4 + 1
    if isinstance(curve, InverseSqrt | Noam):
        return 8 * (curve.warmup + 1)
    return getattr(curve, "steps", 100)
