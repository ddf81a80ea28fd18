"""The shapes that a schedule can have: frozen settings, and the value at an update.

Each is the config behind the builder of the same name in `_build.py`, where its settings are explained. A curve takes
an update that is an int from 0 on; it is `Schedule` that checks this.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from stoker.config import Config
from stoker.schedule._check import check, check_warmup, refuse


def between(start: float, end: float, part: float) -> float:
    """The value a part of the way from start to end; exactly start at 0.0, exactly end at 1.0."""
    return start * (1.0 - part) + end * part


def cosine_part(part: float) -> float:
    """A part of a straight way as the part of a cosine's: slow at both ends."""
    return (1.0 - math.cos(math.pi * part)) / 2.0


class Constant(Config):
    value: float

    def __post_init__(self) -> None:
        check(self)

    def __call__(self, update: int) -> float:
        return self.value


class Linear(Config):
    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        check(self, steps=1)

    def __call__(self, update: int) -> float:
        return between(self.start, self.end, min(update / self.steps, 1.0))


class Cosine(Config):
    peak: float
    _: KW_ONLY
    steps: int
    warmup: int = 0
    end: float = 0.0
    restarts: int = 0
    growth: float = 1.0

    def __post_init__(self) -> None:
        check_warmup(self)
        check(self, restarts=0)
        if self.growth <= 0:
            refuse(self, "growth", "more than 0")
        room = self.steps - self.warmup
        if self.restarts and (self.restarts >= room or not _all_longer(self._cycles())):
            refuse(self, "restarts", f"cycles of an update or more, of the {room} there are (growth is {self.growth})")

    def _cycles(self) -> tuple[int, ...]:
        return cycle_starts(self.steps - self.warmup, self.restarts + 1, self.growth)

    def __call__(self, update: int) -> float:
        if update >= self.steps:
            return self.end
        if update < self.warmup:
            return self.peak * ((update + 1) / (self.warmup + 1))
        update -= self.warmup
        if not self.restarts:
            return between(self.peak, self.end, cosine_part(update / (self.steps - self.warmup)))
        starts = self._cycles()
        cycle = bisect_right(starts, update)
        begin = starts[cycle - 1]
        return between(self.peak, self.end, cosine_part((update - begin) / (starts[cycle] - begin)))


@lru_cache(maxsize=256)
def cycle_starts(steps: int, cycles: int, growth: float) -> tuple[int, ...]:
    """Where each cycle begins, in whole updates, and where the last one ends."""
    if growth == 1.0:
        return tuple(steps * cycle // cycles for cycle in range(cycles + 1))
    if growth > 1.0:  # counted from the longest cycle, so that no power can overflow
        shrink = 1.0 / growth
        return tuple(steps - start for start in reversed(cycle_starts(steps, cycles, shrink)))
    total = 1.0 - growth**cycles
    return tuple(round(steps * ((1.0 - growth**cycle) / total)) for cycle in range(cycles + 1))


def _all_longer(starts: tuple[int, ...]) -> bool:
    return all(a < b for a, b in pairwise(starts))


class Exponential(Config):
    start: float
    _: KW_ONLY
    gamma: float
    end: float | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.gamma <= 0:
            refuse(self, "gamma", "more than 0")
        if self.end is not None and (self.end > self.start) != (self.gamma > 1.0):
            way = "up" if self.gamma > 1.0 else "down"
            refuse(self, "end", f"a value on the way {way} from {self.start}, where gamma {self.gamma} leads")

    def __call__(self, update: int) -> float:
        try:
            value = self.start * self.gamma**update
        except OverflowError:
            value = math.inf
        if self.end is None:
            return value
        return min(value, self.end) if self.gamma > 1.0 else max(value, self.end)


class Step(Config):
    start: float
    _: KW_ONLY
    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check(self, every=1, gamma=0)

    def __call__(self, update: int) -> float:
        return self.start * self.gamma ** (update // self.every)


class Multistep(Config):
    start: float
    _: KW_ONLY
    milestones: tuple[int, ...]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check(self, gamma=0)
        if not _all_longer((-1, *self.milestones)):
            refuse(self, "milestones", "update numbers from 0 on, each larger than the one before")

    def __call__(self, update: int) -> float:
        return self.start * self.gamma ** bisect_right(self.milestones, update)


class Polynomial(Config):
    start: float
    _: KW_ONLY
    steps: int
    end: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        check(self, steps=1)
        if self.power <= 0:
            refuse(self, "power", "more than 0")

    def __call__(self, update: int) -> float:
        return between(self.end, self.start, max(1.0 - update / self.steps, 0.0) ** self.power)


class OneCycle(Config):
    peak: float
    _: KW_ONLY
    steps: int
    rise: float = 0.3
    start: float | None = None
    end: float | None = None
    shape: Literal["cosine", "linear"] = "cosine"

    def __post_init__(self) -> None:
        check(self, steps=2)
        if not 0.0 <= self.rise < 1.0:
            refuse(self, "rise", "a fraction of the updates, from 0 to less than 1")

    def __call__(self, update: int) -> float:
        start = self.peak / 25.0 if self.start is None else self.start
        end = start / 1e4 if self.end is None else self.end
        top, last = self.rise * self.steps - 1.0, self.steps - 1
        if update >= last:
            return end
        if update < top:
            begin, goal, part = start, self.peak, update / top
        else:
            begin, goal, part = self.peak, end, (update - top) / (last - top)
        return between(begin, goal, cosine_part(part) if self.shape == "cosine" else part)


class InverseSqrt(Config):
    peak: float
    _: KW_ONLY
    warmup: int

    def __post_init__(self) -> None:
        check(self, warmup=0)

    def __call__(self, update: int) -> float:
        if update < self.warmup:
            return self.peak * ((update + 1) / (self.warmup + 1))
        return self.peak * math.sqrt((self.warmup + 1) / (update + 1))


class Noam(Config):
    width: int
    _: KW_ONLY
    warmup: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        check(self, width=1, warmup=1)

    def __call__(self, update: int) -> float:
        count = update + 1  # the paper counts from 1
        return self.scale * self.width**-0.5 * min(count**-0.5, count * self.warmup**-1.5)


class WarmupStableDecay(Config):
    peak: float
    _: KW_ONLY
    steps: int
    warmup: int
    decay: int
    end: float = 0.0
    shape: Literal["linear", "cosine", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        check_warmup(self)
        check(self, decay=0)
        if self.warmup + self.decay > self.steps:
            refuse(self, "decay", f"at most steps - warmup, which is {self.steps - self.warmup}")

    def __call__(self, update: int) -> float:
        if update >= self.steps:
            return self.end if self.decay else self.peak
        if update < self.warmup:
            return self.peak * ((update + 1) / (self.warmup + 1))
        if update <= self.steps - self.decay:
            return self.peak
        part = (update - (self.steps - self.decay)) / self.decay
        if self.shape == "cosine":
            part = cosine_part(part)
        elif self.shape == "sqrt":
            part = math.sqrt(part)
        return between(self.peak, self.end, part)


class Function(Config):
    """A function of the user's own, which can't be saved."""

    call: Callable[[int], float]

    def __call__(self, update: int) -> float:
        return self.call(update)
