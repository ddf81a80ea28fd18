"""Curves: the settings of a schedule's shape as a frozen config, and its value at an update.

The builders in `_schedule.py` document the settings. Saved schedules name a curve by its class and its fields
(`{"kind": "Cosine", "peak": 0.01, "steps": 80, ...}`), so these names are part of the file format; everywhere else
`steps` is called `updates`. A curve takes an int of 0 or more: `Schedule` checks it.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, fields
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import ClassVar, Literal, NoReturn, Union

from stoker.config import Config
from stoker.errors import InvalidArgument

# A setting has the same minimum in every curve, unless its class says otherwise in `minimum`.
_MINIMUM = {"steps": 1, "warmup": 0, "restarts": 0, "decay": 0, "every": 1, "gamma": 0, "width": 1, "at": 0}


class Shape(Config):
    """Base of all curves: checks the settings, with errors that name the builder that the user called."""

    minimum: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def builder_name(self) -> str:
        """The public function that makes this curve: `warmup_stable_decay` for `WarmupStableDecay`."""
        return re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                self.reject(name, "a finite number")
        for name, least in {**_MINIMUM, **self.minimum}.items():
            if name in values and values[name] < least:
                self.reject(name, f"at least {least}")
        if values.get("warmup", 0) > values.get("steps", math.inf):
            self.reject("warmup", f"at most updates, which is {values['steps']}")

    def reject(self, name: str, expected: str) -> NoReturn:
        shown = "updates" if name == "steps" else name
        raise InvalidArgument(f"schedule.{self.builder_name()}: {shown} is {getattr(self, name)}; expected {expected}")


def _interpolate(start: float, end: float, fraction: float) -> float:
    """Exactly `start` at 0.0 and exactly `end` at 1.0."""
    return start * (1.0 - fraction) + end * fraction


def _cosine_fraction(fraction: float) -> float:
    """Half a cosine wave from 0 to 1: slow at both ends."""
    return (1.0 - math.cos(math.pi * fraction)) / 2.0


def _warm_up(peak: float, update: int, warmup: int) -> float:
    """No update is spent at zero: update 0 has `peak / (warmup + 1)`, update `warmup` would have the peak."""
    return peak * ((update + 1) / (warmup + 1))


class Constant(Shape):
    value: float

    def __call__(self, update: int) -> float:
        return self.value


class Linear(Shape):
    start: float
    end: float
    steps: int

    def __call__(self, update: int) -> float:
        return _interpolate(self.start, self.end, min(update / self.steps, 1.0))


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
        if self.growth <= 0:
            self.reject("growth", "more than 0")
        length = self.steps - self.warmup
        if self.restarts and (self.restarts >= length or not _increasing(self._cycles())):
            self.reject(
                "restarts",
                f"cycles of at least one update, with {length} updates for all of them and growth {self.growth}",
            )

    def _cycles(self) -> tuple[int, ...]:
        return _cycle_starts(self.steps - self.warmup, self.restarts + 1, self.growth)

    def __call__(self, update: int) -> float:
        if update >= self.steps:
            return self.end
        if update < self.warmup:
            return _warm_up(self.peak, update, self.warmup)
        update -= self.warmup
        if not self.restarts:
            return _interpolate(self.peak, self.end, _cosine_fraction(update / (self.steps - self.warmup)))
        starts = self._cycles()
        cycle = bisect_right(starts, update)
        start, end = starts[cycle - 1], starts[cycle]
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


def _increasing(numbers: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


class Exponential(Shape):
    start: float
    _: KW_ONLY
    gamma: float
    end: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma <= 0:
            self.reject("gamma", "more than 0")
        if self.end is not None and (self.end > self.start) != (self.gamma > 1.0):
            side = "above" if self.gamma > 1.0 else "below"
            self.reject("end", f"a value {side} start ({self.start}), because gamma is {self.gamma}")

    def __call__(self, update: int) -> float:
        try:
            value = self.start * self.gamma**update
        except OverflowError:
            value = math.inf
        if self.end is None:
            return value
        return min(value, self.end) if self.gamma > 1.0 else max(value, self.end)


class Step(Shape):
    start: float
    _: KW_ONLY
    every: int
    gamma: float = 0.1

    def __call__(self, update: int) -> float:
        return self.start * self.gamma ** (update // self.every)


class Multistep(Shape):
    start: float
    _: KW_ONLY
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _increasing((-1, *self.milestones)):
            self.reject("milestones", "update numbers of 0 or more in increasing order")

    def __call__(self, update: int) -> float:
        return self.start * self.gamma ** bisect_right(self.milestones, update)


class Polynomial(Shape):
    start: float
    _: KW_ONLY
    steps: int
    end: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.power <= 0:
            self.reject("power", "more than 0")

    def __call__(self, update: int) -> float:
        return _interpolate(self.end, self.start, max(1.0 - update / self.steps, 0.0) ** self.power)


class OneCycle(Shape):
    peak: float
    _: KW_ONLY
    steps: int
    rise: float = 0.3
    start: float | None = None
    end: float | None = None
    shape: Literal["cosine", "linear"] = "cosine"

    minimum = MappingProxyType({"steps": 2})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.rise < 1.0:
            self.reject("rise", "a fraction of the updates, from 0 to less than 1")

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


class InverseSqrt(Shape):
    peak: float
    _: KW_ONLY
    warmup: int

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return _warm_up(self.peak, update, self.warmup)
        return self.peak * math.sqrt((self.warmup + 1) / (update + 1))


class Noam(Shape):
    width: int
    _: KW_ONLY
    warmup: int
    scale: float = 1.0

    minimum = MappingProxyType({"warmup": 1})

    def __call__(self, update: int) -> float:
        count = update + 1  # the paper counts from 1
        return self.scale * self.width**-0.5 * min(count**-0.5, count * self.warmup**-1.5)


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
        if self.warmup + self.decay > self.steps:
            self.reject("decay", f"at most updates - warmup, which is {self.steps - self.warmup}")

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
    """A linear warm-up to the first value of `after`, which counts from its own 0."""

    after: "Curve"
    steps: int

    minimum = MappingProxyType({"steps": 0})

    def __call__(self, update: int) -> float:
        if update < self.steps:
            return _warm_up(self.after(0), update, self.steps)
        return self.after(update - self.steps)


class Arithmetic(Shape):
    """Two curves, combined at every update."""

    left: "Curve"
    operator: Literal["+", "-", "*", "/"]
    right: "Curve"

    def __call__(self, update: int) -> float:
        left, right, operator = self.left(update), self.right(update), self.operator
        if operator == "*":
            return left * right
        if operator == "+":
            return left + right
        return left - right if operator == "-" else left / right


# Every curve that a file can name. Reading a file imports nothing by name.
_Basic = Constant | Linear | Cosine | Exponential | Step | Multistep | Polynomial | OneCycle | InverseSqrt | Noam
Curve = Union[_Basic, WarmupStableDecay, Function, Then, Warmup, Arithmetic]  # noqa: UP007 - resolves quoted names
