"""A schedule: a pure, serialisable function from the number of an update to a value."""

import json
import math
import operator
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, Union

from stoker.config import Config
from stoker.errors import InvalidArgument, WrongType
from stoker.schedule._code import code
from stoker.schedule._compose import Arithmetic, Curve, Then
from stoker.schedule._curves import Constant, Function

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Schedule(Config):
    """A value for every update, counted from 0; past its end it stays at its last value.

    >>> from stoker import schedule
    >>> warm = schedule.cosine(1e-2, steps=80, warmup=8)
    >>> warm(8), warm(80), warm(1000)
    (0.01, 0.0, 0.0)
    >>> 0.1 * warm
    0.1 * schedule.cosine(0.01, steps=80, warmup=8)
    >>> Schedule.from_dict(warm.to_dict()) == warm
    True

    Made by the builders of `stoker.schedule`, combined with `then`, `+`, `-`, `*` and `/` (also with numbers), and
    printed as the code that makes it. It is a `Config`, so it can be saved, loaded, and be a field of a config.
    """

    curve: Curve

    def __call__(self, update: int) -> float:
        """The value at an update; calling it twice, in any order, gives the same."""
        if type(update) is not int or update < 0:
            update = _checked_update(update)
        try:
            value = self.curve(update)
            if type(value) is float and math.isfinite(value):
                return value
        except (OverflowError, ZeroDivisionError):
            value = math.nan
        return self._checked_value(value, update)

    def _checked_value(self, value: Any, update: int) -> float:
        if not isinstance(value, Real):  # what a function of the user's own may give
            raise WrongType(f"{self!r} gives {value!r} at update {update}; expected a number")
        if not math.isfinite(value):
            raise InvalidArgument(f"{self!r} has no finite value at update {update}")
        return float(value)

    def then(self, other: "ScheduleLike", *, at: int) -> "Schedule":
        """This one until update `at`, then the other one, which counts from its own 0.

        >>> from stoker import schedule
        >>> both = schedule.constant(0.1).then(schedule.linear(0.1, 0.0, steps=4), at=10)
        >>> both(9), both(10), both(12), both(14)
        (0.1, 0.1, 0.05, 0.0)
        """
        return Schedule(Then(self.curve, as_schedule(other).curve, at))

    def plot(self, *, steps: int | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draws the schedule with matplotlib and returns the axes; see `stoker.schedule.plot`."""
        from stoker.schedule._plot import plot  # it draws schedules, so it comes after this file

        return plot(self, steps=steps, ax=ax)

    def __add__(self, other: "float | Schedule") -> "Schedule":
        return _combined(self, "+", other)

    def __radd__(self, other: float) -> "Schedule":
        return _combined(other, "+", self)

    def __sub__(self, other: "float | Schedule") -> "Schedule":
        return _combined(self, "-", other)

    def __rsub__(self, other: float) -> "Schedule":
        return _combined(other, "-", self)

    def __mul__(self, other: "float | Schedule") -> "Schedule":
        return _combined(self, "*", other)

    def __rmul__(self, other: float) -> "Schedule":
        return _combined(other, "*", self)

    def __truediv__(self, other: "float | Schedule") -> "Schedule":
        return _combined(self, "/", other)

    def __rtruediv__(self, other: float) -> "Schedule":
        return _combined(other, "/", self)

    def __neg__(self) -> "Schedule":
        return _combined(-1.0, "*", self)

    def __repr__(self) -> str:
        return code(self.curve)

    @classmethod
    def _from_word(cls, word: str) -> "Schedule":
        """A schedule on a command line: a number, or what `to_dict` gives, as JSON."""
        data = json.loads(word)
        return cls.from_dict(data) if isinstance(data, dict) else as_schedule(data)


ScheduleLike = Union[float, Schedule, Callable[[int], float]]  # noqa: UP007


def as_schedule(value: ScheduleLike) -> Schedule:
    """A schedule of whatever can be one: a number is a constant, a schedule stays, a function of the update is called.

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


def _combined(left: Any, sign: str, right: Any) -> Schedule:
    for side in (left, right):
        if not isinstance(side, Schedule | Real) or isinstance(side, bool):
            return NotImplemented
    return Schedule(Arithmetic(as_schedule(left).curve, sign, as_schedule(right).curve))  # pyright: ignore[reportArgumentType]


def _checked_update(update: Any) -> int:
    try:
        update = operator.index(update)
    except TypeError:
        raise WrongType(f"the number of an update is an int, got {update!r}") from None
    if update < 0:
        raise InvalidArgument(f"updates are counted from 0, got {update}")
    return update
