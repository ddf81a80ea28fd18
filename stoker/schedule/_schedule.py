"""Schedules: the functions that build them, and `Schedule` itself.

A builder, such as `cosine`, checks its settings and returns the function from an update number to a value. `_curve`
turns it into what users call, and makes a config class of its settings. Files name that class and its fields
(`{"kind": "Cosine", "peak": 0.01, "steps": 80, ...}`), so kinds and fields are part of the file format. There the
length of a schedule is `steps`, which builders call `updates` (`steps` is accepted too).

A length that is `None`, and a part of it that is a fraction (a float), are completed by `_complete` as soon as the
number of updates is known: `fit` knows its own. Until then the curve has no values (`needs_length`).
"""

import functools
import inspect
import json
import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Union

from stoker.config import Config
from stoker.errors import ConfigError, InvalidArgument, WrongType
from stoker.schedule._replay import describe_scheduler, replay_scheduler

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")
Values = Callable[[int], float]  # from the number of an update, an int of 0 or more, to the value

_NOT_GIVEN: Any = None  # the default of `updates` and `steps`: the length of the fit
_PARTS = ("warmup", "decay", "at")  # settings that are a number of updates, or a fraction of the length
_LONG = 10**12  # updates, more than any training has
_LEAST = {"steps": 1, "warmup": 0, "restarts": 0, "decay": 0, "gamma": 0, "at": 0, "every": 1, "width": 1}


class _Settings(Config):
    """Base of the classes that `_curve` makes: the settings of one builder, and the values they give."""

    builder: ClassVar[str]
    make_values: ClassVar[Callable[..., Values]]
    values: ClassVar[Values]  # set by the constructor
    needs_length: ClassVar[bool]  # set by the constructor: whether it has no values yet

    def as_dict(self) -> dict[str, Any]:
        """The settings by name. Not `vars(self)`: CPython reads the attributes of an object more slowly after that."""
        return {setting.name: getattr(self, setting.name) for setting in fields(self)}

    def __post_init__(self) -> None:
        settings = self.as_dict()
        for name, value in settings.items():
            shown = "updates" if name == "steps" else name
            if isinstance(value, float):
                _expect(math.isfinite(value), f"{self.builder}: {shown} is {value}", "a finite number")
            if isinstance(value, float) and name in (*_PARTS, "steps"):
                expected = "a number of updates, such as 100, or a fraction of the length below 1, such as 0.05"
                _expect(0 <= value < 1, f"{self.builder}: {shown} is {value}", expected)
            elif isinstance(value, int | float) and name in _LEAST and not (name == "steps" and "after" in settings):
                _expect(value >= _LEAST[name], f"{self.builder}: {shown} is {value}", f"at least {_LEAST[name]}")
        needs_length = _needs_length(self)
        object.__setattr__(self, "needs_length", needs_length)
        object.__setattr__(self, "values", _no_values(self) if needs_length else self._make_values(settings))
        if needs_length and "steps" in settings and "after" not in settings:
            _complete(self, _LONG, None)  # raises for settings that are wrong whatever the length is

    def _make_values(self, settings: dict[str, Any]) -> Values:
        if settings.get("steps") is not None:
            settings = _count_parts(settings, settings["steps"])
        return type(self).make_values(
            **{"updates" if name == "steps" else name: value for name, value in settings.items()}
        )

    def __reduce__(self) -> tuple[Any, ...]:  # the values are a function without a name, which can't be pickled
        return _restore, (type(self).__name__, self.as_dict())


_KINDS: dict[str, type[_Settings]] = {}  # every class that a file can name; reading a file imports nothing by name


def _restore(kind: str, settings: dict[str, Any]) -> _Settings:
    return _KINDS[kind](**settings)


def _curve(kind: str) -> Callable[[Callable[P, Values]], Callable[P, "Schedule"]]:
    """Makes a builder of schedules from a function of settings, and a class for the settings with this name."""

    def decorate(make_values: Callable[P, Values]) -> Callable[P, "Schedule"]:
        signature, name = inspect.signature(make_values), make_values.__name__.strip("_")
        body: dict[str, Any] = {"builder": name, "make_values": staticmethod(make_values), "__annotations__": {}}
        for parameter in signature.parameters.values():
            if parameter.name != "steps":
                setting = "steps" if parameter.name == "updates" else parameter.name
                is_required = parameter.default is parameter.empty
                default: Any = MISSING if is_required else parameter.default
                is_length = setting == "steps" and not is_required
                body["__annotations__"][setting] = int | None if is_length else parameter.annotation
                body[setting] = field(default=default, kw_only=parameter.kind == parameter.KEYWORD_ONLY)
        text = make_values.__doc__ or kind  # `dataclasses` would write a signature instead of it, which takes longer
        settings_class = _KINDS[kind] = type(kind, (_Settings,), {**body, "__module__": __name__, "__doc__": text})

        def build(*args: P.args, **kwargs: P.kwargs) -> "Schedule":
            settings = signature.bind(*args, **kwargs).arguments
            if "steps" in signature.parameters:
                settings["steps"] = find_length(name, settings.pop("updates", None), settings.pop("steps", None))
            elif "updates" in settings:
                settings["steps"] = settings.pop("updates")
            return Schedule(settings_class(**settings))

        functools.update_wrapper(build, make_values)
        build.__dict__["__signature__"] = signature.replace(return_annotation="Schedule")
        return build

    return decorate


def find_length(builder: str, updates: Any, steps: Any) -> Any:
    """The length of a schedule, given as `updates` or, by its older name, as `steps`; None if neither is given."""
    if updates is not None and steps is not None:
        raise InvalidArgument(
            f"schedule.{builder}: got updates={updates} and steps={steps}; they mean the same, give one"
        )
    length = steps if updates is None else updates
    if length is not None and (isinstance(length, bool) or not isinstance(length, Integral)):
        raise ConfigError(f"updates: expected int, got {length!r}")
    return length if length is None else int(length)


def _needs_length(curve: _Settings) -> bool:
    """Whether a curve has no values until somebody says how many updates there are."""
    settings = curve.as_dict()
    if any(isinstance(part, _Settings) and part.needs_length for part in settings.values()):
        return True
    if curve.builder == "torch":
        return settings["every"] == "epoch" and settings["epoch_updates"] is None
    if curve.builder == "exponential" and settings["gamma"] is not None:
        return False
    length = settings.get("steps")
    if "steps" in settings and not isinstance(length, int):
        return True
    return length is None and any(isinstance(settings.get(name), float) for name in _PARTS)


def _no_values(curve: _Settings) -> Values:
    def value(update: int) -> float:
        length = "1000, per_epoch=100" if "every='epoch'" in _code(curve) else "1000"
        raise InvalidArgument(
            f"{_code(curve)} takes its length from the fit that uses it; for your own loop, say it: "
            f"lr = lr.with_updates({length})"
        )

    return value


def _count_parts(settings: dict[str, Any], length: int) -> dict[str, Any]:
    """Replaces fractions of a length by numbers of updates."""
    counted = {
        name: round(value * length) if name in _PARTS and isinstance(value, float) else value
        for name, value in settings.items()
    }
    if isinstance(settings.get("decay"), float) and counted["warmup"] + counted["decay"] == length + 1:
        counted["decay"] -= 1  # both parts were rounded up
    return counted


def _complete(curve: Any, updates: int | None, per_epoch: int | None) -> Any:
    """The curve of a training with so many updates: every part that has no length gets that of its place in it.

    What depends on a number that is None stays as it is.
    """
    if not curve.needs_length:
        return curve
    settings = curve.as_dict()
    if curve.builder == "torch":
        settings["epoch_updates"] = per_epoch
    elif curve.builder == "arithmetic":
        settings |= {side: _complete(settings[side], updates, per_epoch) for side in ("left", "right")}
    elif curve.builder in ("then", "warmup"):
        place, part = ("at", "second") if curve.builder == "then" else ("steps", "after")
        start = settings[place]
        if isinstance(start, float):
            if updates is None:
                return curve
            start = settings[place] = round(start * updates)
        rest = None if updates is None else max(updates - start, 1)
        settings[part] = _complete(settings[part], rest, per_epoch)
        if curve.builder == "then":
            settings["first"] = _complete(settings["first"], max(start, 1), per_epoch)
    elif updates is None:
        return curve
    else:
        if "steps" in settings:
            settings["steps"] = updates
        settings = _count_parts(settings, updates)
    return type(curve)(**settings)


def _expect(holds: bool, given: str, expected: str) -> None:
    if not holds:
        raise InvalidArgument(f"schedule.{given}; expected {expected}")


def _interpolate(start: float, end: float, fraction: float) -> float:
    """Exactly `start` at 0.0 and exactly `end` at 1.0."""
    return start * (1.0 - fraction) + end * fraction


def _cosine_fraction(fraction: float) -> float:
    """Half a cosine wave from 0 to 1: slow at both ends."""
    return (1.0 - math.cos(math.pi * fraction)) / 2.0


def _warm_up(peak: float, update: int, warmup: float) -> float:
    """No update is spent at zero: update 0 has `peak / (warmup + 1)`, update `warmup` would have the peak."""
    return peak * ((update + 1) / (warmup + 1))


def _is_increasing(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


# --- builders


@_curve("Constant")
def constant(value: float) -> Values:
    """The same value at every update.

    >>> constant(0.1)(1000)
    0.1
    """
    return lambda update: value


@_curve("Linear")
def linear(start: float, end: float, updates: int = _NOT_GIVEN, *, steps: int = _NOT_GIVEN) -> Values:
    """A straight line from start to end, over the updates of the fit unless `updates` is given.

    >>> down = linear(1.0, 0.0, updates=4)
    >>> [down(update) for update in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    return lambda update: _interpolate(start, end, min(update / updates, 1.0))


@_curve("Cosine")
def cosine(
    peak: float,
    *,
    updates: int = _NOT_GIVEN,
    warmup: int | float = 0,
    end: float = 0.0,
    restarts: int = 0,
    growth: float = 1.0,
    steps: int = _NOT_GIVEN,
) -> Values:
    """Half a cosine wave from the peak down to `end`, after a linear warm-up.

    >>> warm = cosine(1e-2, updates=80, warmup=8)
    >>> warm(0) < warm(8) == 1e-2 > warm(79) > warm(80) == 0.0
    True
    >>> cycles = cosine(1.0, updates=70, restarts=2, growth=2)  # cycles of 10, 20 and 40 updates
    >>> cycles(0), cycles(10), cycles(30), cycles(70)
    (1.0, 1.0, 1.0, 0.0)

    >>> cosine(3e-3, warmup=0.05)  # over the updates of the fit, of which 5 % are the warm-up
    schedule.cosine(0.003, warmup=0.05)

    Without `updates`, the length is that of the fit: its epochs times the updates of an epoch, or its `updates`.
    `warmup` is a number of updates, or a fraction of the length below 1, rounded to whole updates. Each of the
    `restarts` begins at the peak again, and each cycle is `growth` times as long as the one before it. Cycles are whole
    updates and together fill the length. After the end the value stays at `end`.
    """
    warmup = int(warmup)
    _expect(warmup <= updates, f"cosine: warmup is {warmup}", f"at most updates, which is {updates}")
    _expect(growth > 0, f"cosine: growth is {growth}", "more than 0")
    length = updates - warmup
    starts = _cycle_starts(length, restarts + 1, growth) if restarts < length else ()
    cycles = f"cycles of at least one update, with {length} updates for all of them and growth {growth}"
    fits = restarts == 0 or (len(starts) > 0 and _is_increasing(starts))
    _expect(fits, f"cosine: restarts is {restarts}", cycles)

    def value(update: int) -> float:
        if update >= updates:
            return end
        if update < warmup:
            return _warm_up(peak, update, warmup)
        cycle = bisect_right(starts, update - warmup)
        first, last = starts[cycle - 1], starts[cycle]
        return _interpolate(peak, end, _cosine_fraction((update - warmup - first) / (last - first)))

    return value


def _cycle_starts(updates: int, cycles: int, growth: float) -> tuple[int, ...]:
    """The first update of each cycle, and the end of the last one."""
    if growth == 1.0:
        return tuple(updates * cycle // cycles for cycle in range(cycles + 1))
    if growth > 1.0:  # mirrored, so that no power overflows
        mirrored = _cycle_starts(updates, cycles, 1.0 / growth)
        return tuple(updates - start for start in reversed(mirrored))
    total = 1.0 - growth**cycles
    return tuple(round(updates * ((1.0 - growth**cycle) / total)) for cycle in range(cycles + 1))


@_curve("Exponential")
def exponential(
    start: float,
    *,
    gamma: float | None = None,
    end: float | None = None,
    updates: int = _NOT_GIVEN,
    steps: int = _NOT_GIVEN,
) -> Values:
    """Multiplies the value by gamma after every update, forever or until it reaches `end`.

    >>> half = exponential(1.0, gamma=0.5, end=0.1)
    >>> [half(update) for update in range(5)]
    [1.0, 0.5, 0.25, 0.125, 0.1]
    >>> exponential(1.0, end=0.25, updates=4)(2)
    0.5

    Without `gamma`, the factor is the one that reaches `end` after `updates`, by default the updates of the fit.
    """
    if gamma is None:
        fits = end is not None and start * end > 0
        _expect(fits, f"exponential: start is {start} and end is {end}", "two values with the same sign, or a gamma")
        ratio = (end or 0.0) / start
        return lambda update: start * ratio ** (update / updates) if update < updates else start * ratio
    _expect(updates is None, f"exponential: gamma is {gamma} and updates is {updates}", "one of them")
    _expect(gamma > 0, f"exponential: gamma is {gamma}", "more than 0")
    side, stop = ("above", min) if gamma > 1.0 else ("below", max)
    fits = end is None or (end > start) == (gamma > 1.0)
    _expect(fits, f"exponential: end is {end}", f"a value {side} start ({start}), because gamma is {gamma}")

    def value(update: int) -> float:
        try:
            current = start * gamma**update
        except OverflowError:
            current = math.inf
        return current if end is None else stop(current, end)

    return value


@_curve("Step")
def step(start: float, *, every: int, gamma: float = 0.1) -> Values:
    """Multiplies the value by gamma after every `every` updates.

    >>> stairs = step(1.0, every=2, gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    return lambda update: start * gamma ** (update // every)


@_curve("Multistep")
def _multistep(start: float, *, milestones: tuple[int, ...], gamma: float = 0.1) -> Values:
    expected = "update numbers of 0 or more in increasing order"
    _expect(_is_increasing((-1, *milestones)), f"multistep: milestones is {milestones}", expected)
    return lambda update: start * gamma ** bisect_right(milestones, update)


def multistep(start: float, *, milestones: Sequence[int], gamma: float = 0.1) -> "Schedule":
    """Multiplies the value by gamma at each milestone.

    >>> stairs = multistep(1.0, milestones=[1, 4], gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 0.5, 0.5, 0.5, 0.25]
    """
    return _multistep(start, milestones=tuple(milestones), gamma=gamma)


@_curve("Polynomial")
def polynomial(
    start: float, *, updates: int = _NOT_GIVEN, end: float = 0.0, power: float = 1.0, steps: int = _NOT_GIVEN
) -> Values:
    """From start to end, with the remaining fraction of updates to the power `power`; by default over the whole fit.

    >>> square = polynomial(1.0, updates=4, power=2)
    >>> [square(update) for update in range(5)]
    [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """
    _expect(power > 0, f"polynomial: power is {power}", "more than 0")
    return lambda update: _interpolate(end, start, max(1.0 - update / updates, 0.0) ** power)


@_curve("OneCycle")
def one_cycle(
    peak: float,
    *,
    updates: int = _NOT_GIVEN,
    rise: float = 0.3,
    start: float | None = None,
    end: float | None = None,
    shape: Literal["cosine", "linear"] = "cosine",
    steps: int = _NOT_GIVEN,
) -> Values:
    """Up to the peak during a fraction `rise` of the updates, then down to almost zero; by default over the whole fit.

    >>> cycle = one_cycle(1.0, updates=11, rise=0.5, shape="linear", start=0.0, end=0.0)
    >>> cycle(0), cycle(10), cycle(11)
    (0.0, 0.0, 0.0)

    Matches torch's `OneCycleLR`: `start` defaults to `peak / 25` and `end` to `start / 10_000`, and the last of the
    updates, not the one after it, has the value `end`.
    """
    _expect(updates >= 2, f"one_cycle: updates is {updates}", "at least 2")
    _expect(0.0 <= rise < 1.0, f"one_cycle: rise is {rise}", "a fraction of the updates, from 0 to less than 1")
    first = peak / 25.0 if start is None else start
    final = first / 1e4 if end is None else end
    top, last = rise * updates - 1.0, updates - 1
    bend = _cosine_fraction if shape == "cosine" else float

    def value(update: int) -> float:
        if update >= last:
            return final
        if update < top:
            return _interpolate(first, peak, bend(update / top))
        return _interpolate(peak, final, bend((update - top) / (last - top)))

    return value


@_curve("InverseSqrt")
def inverse_sqrt(peak: float, *, warmup: int | float) -> Values:
    """A linear warm-up to the peak at update `warmup`, then proportional to 1 / sqrt(update + 1), without an end.

    `warmup` may be a fraction of the updates of the fit.

    >>> slow = inverse_sqrt(1.0, warmup=3)
    >>> slow(0), slow(3), slow(15)
    (0.25, 1.0, 0.5)
    """

    def value(update: int) -> float:
        if update < warmup:
            return _warm_up(peak, update, warmup)
        return peak * math.sqrt((warmup + 1) / (update + 1))

    return value


@_curve("Noam")
def noam(width: int, *, warmup: int | float, scale: float = 1.0) -> Values:
    """The schedule of "Attention Is All You Need" for a model of a width, with its highest value at `warmup - 1`.

    `warmup` may be a fraction of the updates of the fit.

    >>> first = noam(64, warmup=4)
    >>> first(3)  # the highest: 64 ** -0.5 * 4 ** -0.5
    0.0625
    """
    _expect(warmup >= 1, f"noam: warmup is {warmup}", "at least 1")
    # The paper counts updates from 1.
    return lambda update: scale * width**-0.5 * min((update + 1) ** -0.5, (update + 1) * warmup**-1.5)


@_curve("WarmupStableDecay")
def warmup_stable_decay(
    peak: float,
    *,
    updates: int = _NOT_GIVEN,
    warmup: int | float,
    decay: int | float,
    end: float = 0.0,
    shape: Literal["linear", "cosine", "sqrt"] = "linear",
    steps: int = _NOT_GIVEN,
) -> Values:
    """A linear warm-up, then the peak, then down to `end` in the last `decay` updates.

    >>> trapezoid = warmup_stable_decay(1.0, updates=10, warmup=3, decay=4)
    >>> [trapezoid(update) for update in range(11)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    The decay is linear, a cosine, or (`"sqrt"`) proportional to the square root of the updates since it began.
    Without `updates`, the length is that of the fit. `warmup` and `decay` are numbers of updates, or fractions of the
    length below 1: `warmup_stable_decay(1e-3, warmup=0.05, decay=0.2)`.
    """
    stable = updates - decay
    _expect(warmup <= updates, f"warmup_stable_decay: warmup is {warmup}", f"at most updates, which is {updates}")
    most = f"at most updates - warmup, which is {updates - warmup}"
    _expect(warmup <= stable, f"warmup_stable_decay: decay is {decay}", most)
    bend = {"linear": float, "cosine": _cosine_fraction, "sqrt": math.sqrt}[shape]

    def value(update: int) -> float:
        if update < warmup:
            return _warm_up(peak, update, warmup)
        if update <= stable or not decay:
            return peak
        return _interpolate(peak, end, bend((update - stable) / decay)) if update < updates else end

    return value


def warmup(
    schedule: "ScheduleLike", *, updates: int | float | None = None, steps: int | float | None = None
) -> "Schedule":
    """A linear warm-up to the first value of a schedule, and then that schedule, which counts from its own 0.

    >>> warm = warmup(step(1.0, every=2, gamma=0.5), updates=3)
    >>> [warm(update) for update in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5]

    `updates` is the length of the warm-up: a number, or a fraction of the fit below 1. A schedule that takes its length
    from the fit gets the rest of it.
    """
    fraction = steps if updates is None else updates
    if isinstance(fraction, float) and (updates is None or steps is None):
        return _warmup(as_schedule(schedule).curve, fraction)
    length = find_length("warmup", updates, steps)
    if length is None:
        raise InvalidArgument("schedule.warmup: the length is missing; write updates=... (a number, or a fraction)")
    return _warmup(as_schedule(schedule).curve, length)


@_curve("Warmup")
def _warmup(after: "Curve", updates: int | float) -> Values:
    _expect(updates >= 0, f"warmup: updates is {updates}", "at least 0")
    values, length = after.values, int(updates)
    return lambda update: _warm_up(values(0), update, length) if update < length else values(update - length)


@_curve("Function")
def _function(call: Callable[[int], float]) -> Values:
    return call


def torch(
    scheduler: Callable[..., Any],
    lr: float | None = None,
    *,
    every: Literal["update", "epoch"] = "update",
    **arguments: Any,
) -> "Schedule":
    """The learning rates of one of torch's schedulers, computed by torch itself.

    >>> from torch.optim import lr_scheduler
    >>> stairs = torch(lr_scheduler.StepLR, 1.0, step_size=2, gamma=0.5)
    >>> [stairs(update) for update in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]

    `scheduler` is a class of `torch.optim.lr_scheduler`, or any function that takes an optimizer (and the `arguments`)
    and returns such a scheduler: a lambda that builds a `SequentialLR`, or `get_cosine_schedule_with_warmup` of
    transformers. `lr` is the learning rate of the optimizer, from which most schedulers start. `every` says how often
    your loop would call `scheduler.step()`. Like every schedule, it is a function of the update number and needs
    nothing to resume; like one made of a function, it can't be saved to a file. Give each group of parameters its own:
    `lr={"head": schedule.torch(...), "*": 1e-4}`.
    """
    make = functools.partial(scheduler, **arguments)
    replay_scheduler(make, lr)  # raises for what is not a scheduler
    return _torch(make, lr, every)


@_curve("Torch")
def _torch(
    make: Callable[..., Any],
    lr: float | None,
    every: Literal["update", "epoch"],
    epoch_updates: int | None = None,  # the updates of an epoch
) -> Values:
    rates = replay_scheduler(make, lr)
    length = 1 if every == "update" else epoch_updates or 1
    return lambda update: rates(update // length)


@_curve("Then")
def _then(first: "Curve", second: "Curve", at: int | float) -> Values:
    before, after, start = first.values, second.values, int(at)
    return lambda update: before(update) if update < start else after(update - start)


_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@_curve("Arithmetic")
def _arithmetic(left: "Curve", operator: Literal["+", "-", "*", "/"], right: "Curve") -> Values:
    apply, a, b = _OPERATORS[operator], left.values, right.values
    return lambda update: apply(a(update), b(update))


if TYPE_CHECKING:
    Curve = _Settings
else:
    Curve = Union[tuple(_KINDS.values())]  # noqa: UP007 - made at run time


# --- schedules


def _operators(sign: Any) -> tuple[Callable[[Any, Any], "Schedule"], Callable[[Any, Any], "Schedule"]]:
    """The methods behind `schedule + other` and `other + schedule`."""

    def combine(left: Any, right: Any) -> "Schedule":
        for side in (left, right):
            if not isinstance(side, Schedule | Real) or isinstance(side, bool):
                return NotImplemented
        return _arithmetic(as_schedule(left).curve, sign, as_schedule(right).curve)

    return combine, lambda self, other: combine(other, self)


class Schedule(Config):
    """A value for every update, counted from 0; after its end it keeps its last value.

    >>> from stoker import schedule
    >>> warm = schedule.cosine(1e-2, updates=80, warmup=8)
    >>> warm(8), warm(80), warm(1000)
    (0.01, 0.0, 0.0)
    >>> 0.1 * warm
    0.1 * schedule.cosine(0.01, updates=80, warmup=8)
    >>> Schedule.from_dict(warm.to_dict()) == warm
    True

    The builders of `stoker.schedule` make schedules; `then`, `+`, `-`, `*` and `/` (also with numbers) combine them.
    A schedule is a `Config`: it can be compared, saved, loaded and used as a field of another config. It prints as
    code that makes it.

    A schedule without a length takes that of the fit; `with_updates` says it for your own loop.
    """

    curve: Curve

    @property
    def needs_length(self) -> bool:
        """Whether the schedule takes its length from a fit, and can't be called until `with_updates` says it."""
        return self.curve.needs_length

    def with_updates(self, updates: int | None = None, *, per_epoch: int | None = None) -> "Schedule":
        """The schedule for a training of so many updates, `per_epoch` of them in each epoch.

        >>> from stoker import schedule
        >>> schedule.cosine(3e-3, warmup=0.05).with_updates(200)
        schedule.cosine(0.003, updates=200, warmup=10)

        `fit` does this with its own numbers. Lengths that were given stay. In a combination, every part without a
        length gets that of its place: after `then(..., at=50)`, the remaining updates. `per_epoch` is used by
        schedulers of torch that count epochs.
        """
        for name, value in (("updates", updates), ("per_epoch", per_epoch)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
                raise InvalidArgument(f"with_updates: {name} is a number of at least 1, got {value!r}")
        return Schedule(_complete(self.curve, updates, per_epoch)) if self.needs_length else self

    def __call__(self, update: int) -> float:
        """The value at an update, a pure function of its number."""
        if type(update) is not int or update < 0:
            update = _check_update(update)
        try:
            value = self.curve.values(update)
            if type(value) is float and math.isfinite(value):
                return value
        except (OverflowError, ZeroDivisionError):
            value = math.nan
        if not isinstance(value, Real):  # a function that the user wrote may return anything
            raise WrongType(f"{self!r} gives {value!r} at update {update}; expected a number")
        if not math.isfinite(value):
            raise InvalidArgument(f"{self!r} has no finite value at update {update}")
        return float(value)

    def then(self, other: "ScheduleLike", *, at: int | float) -> "Schedule":
        """This schedule until update `at` (or a fraction of the fit below 1), then the other one, from its own 0.

        >>> from stoker import schedule
        >>> both = schedule.constant(0.1).then(schedule.linear(0.1, 0.0, updates=4), at=10)
        >>> both(9), both(10), both(12), both(14)
        (0.1, 0.1, 0.05, 0.0)
        """
        return _then(self.curve, as_schedule(other).curve, at)

    def plot(self, *, updates: int | None = None, ax: "Axes | None" = None, steps: int | None = None) -> "Axes":
        """Draws the schedule with matplotlib and returns the axes; see `stoker.schedule.plot`."""
        from stoker.schedule._plot import plot

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
"""What `as_schedule` takes: a number, a schedule, or a function of the update number."""


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
        return constant(float(value))
    scheduler = value.func if isinstance(value, functools.partial) else value
    if isinstance(scheduler, type) and scheduler.__module__ == "torch.optim.lr_scheduler":
        name = scheduler.__name__
        if name == "ReduceLROnPlateau":
            raise WrongType("got the class ReduceLROnPlateau of torch: use callbacks=[callbacks.ReduceLROnPlateau()]")
        raise WrongType(
            f"got the class {name} of torch: write lr=schedule.torch({name}, lr=..., ...), with its arguments"
        )
    if callable(value) and not isinstance(value, type):
        return _function(value)
    kind = type(value).__name__
    if hasattr(value, "optimizer") and hasattr(value, "last_epoch"):  # a scheduler of torch
        raise WrongType(f"got a {kind} of torch, which sets the learning rate of its optimizer: {_replace(value)}")
    raise WrongType(
        "expected a number, a schedule such as schedule.cosine(3e-3, warmup=0.05), or a function from the number of an "
        f"update to a number; got {value!r}, a {kind}"
    )


def _replace(scheduler: Any) -> str:
    """What to write instead of a scheduler of torch; its `step` may count epochs, schedules count updates."""
    settings = vars(scheduler)
    peak = next(iter(settings.get("base_lrs", ())), "lr")
    templates = {
        "CosineAnnealingLR": "cosine({peak}, updates={T_max}, end={eta_min})",
        "StepLR": "step({peak}, every={step_size}, gamma={gamma})",
        "ExponentialLR": "exponential({peak}, gamma={gamma})",
        "PolynomialLR": "polynomial({peak}, updates={total_iters}, power={power})",
        "MultiStepLR": "multistep({peak}, milestones={sorted}, gamma={gamma})",
        "LinearLR": "linear({peak} * {start_factor}, {peak} * {end_factor}, updates={total_iters})",
        "OneCycleLR": "one_cycle({max_lr}, updates={total_steps})",
        "LambdaLR": "as_schedule(lambda update: {peak} * factor(update))",
    }
    kind = type(scheduler).__name__
    if kind == "ReduceLROnPlateau":
        return f"write callbacks.ReduceLROnPlateau(factor={settings['factor']}, patience={settings['patience']})"
    if kind not in templates:
        return f"write lr=schedule.torch({kind}, lr={peak}, ...), with its arguments, or one of stoker.schedule"
    values = {**settings, "peak": peak, "sorted": sorted(settings.get("milestones", ()))}
    if kind == "OneCycleLR":
        values["max_lr"] = scheduler.optimizer.param_groups[0]["max_lr"]
    return f"write lr=schedule.{templates[kind].format(**values)} (counted in updates)"


def _check_update(update: Any) -> int:
    try:
        update = operator.index(update)
    except TypeError:
        raise WrongType(f"the number of an update is an int, got {update!r}") from None
    if update < 0:
        raise InvalidArgument(f"updates are counted from 0, got {update}")
    return update


def _code(curve: Any) -> str:
    """The expression that makes a schedule of this curve."""
    match curve.builder:
        case "arithmetic":
            # Of two constants one must be spelled out: Python would add bare numbers itself.
            left = _operand(curve.left, bare=curve.right.builder != "constant")
            return f"{left} {curve.operator} {_operand(curve.right, bare=True)}"
        case "then":
            return f"{_operand(curve.first, bare=False)}.then({_code(curve.second)}, at={curve.at})"
        case "warmup":
            return f"schedule.warmup({_code(curve.after)}, updates={curve.steps})"
        case "function":
            return f"schedule.as_schedule({getattr(curve.call, '__qualname__', repr(curve.call))})"
        case "torch":
            each = ", every='epoch'" if curve.every == "epoch" else ""
            return f"schedule.torch({describe_scheduler(curve.make, curve.lr)}{each})"
    shown = [(setting, getattr(curve, setting.name)) for setting in fields(curve)]
    positional = [repr(value) for setting, value in shown if not setting.kw_only and value is not None]
    given = {each.name: value for each, value in shown if each.kw_only and value != each.default}
    named = [f"{'updates' if name == 'steps' else name}={value!r}" for name, value in given.items()]
    return f"schedule.{curve.builder}({', '.join(positional + named)})"


def _operand(curve: Any, *, bare: bool) -> str:
    if curve.builder == "constant" and bare:
        return repr(curve.value)
    return f"({_code(curve)})" if curve.builder == "arithmetic" else _code(curve)


def natural_length(curve: _Settings) -> int:
    """The updates that show what a curve does: until its end, or enough of it if it has none."""
    settings = curve.as_dict()
    parts = [natural_length(part) for part in settings.values() if isinstance(part, _Settings)]
    if parts:
        return max(parts) + settings.get("at", settings.get("steps", 0))
    if curve.builder == "step":
        return 4 * settings["every"]
    if "milestones" in settings:
        return max(settings["milestones"], default=0) * 5 // 4 + 1
    return settings.get("steps") or (8 * (settings["warmup"] + 1) if "warmup" in settings else 100)
