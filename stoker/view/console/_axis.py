"""An axis: what part of it lies below a value, and the round numbers that are written beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stoker.view.console._format import clock, short

Kind = Literal["number", "ratio", "count", "clock"]
# The steps of a clock, in seconds; longer ones are round numbers of days.
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values: of numbers, of numbers by ratio (a log scale), of whole counts, or of times in seconds.

    >>> Axis(0.0, 0.93).marks(4)
    {0.0: '0.0', 0.5: '0.5'}
    >>> Axis(0.02, 3.0, "ratio").marks(8)
    {0.02: '0.02', 0.05: '0.05', 0.1: '0.1', 0.2: '0.2', 0.5: '0.5', 1.0: '1', 2.0: '2'}
    >>> Axis(1, 30_000, "count").marks(4), Axis(0, 200, "clock").marks(5)
    ({10000.0: '10k', 20000.0: '20k', 30000.0: '30k'}, {0.0: '0:00', 60.0: '1:00', 120.0: '2:00', 180.0: '3:00'})
    """

    low: float
    high: float
    kind: Kind = "number"

    @classmethod
    def around(cls, values: NDArray[np.float64], kind: Kind = "number") -> "Axis":
        """The axis that holds all of the values that are finite; one of a single value has it in the middle."""
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if kind == "ratio":
            low, high = (low, high) if finite.size else (0.1, 1.0)
            return cls(low / 2, high * 2, kind) if high <= low * 1.000001 else cls(low, high, kind)
        if high - low <= 1e-12 * max(abs(low), abs(high)):
            room = 1.0 if kind in ("count", "clock") else abs(low) / 2 or 1.0
            return cls(low - (kind == "number") * room, high + room, kind)
        return cls(low, high, kind)

    def share(self, values: ArrayLike) -> NDArray[np.float64]:
        """What part of the axis lies below each value: 0 at its low end, 1 at its high end."""
        if self.kind == "ratio":
            low, high = math.log(self.low), math.log(self.high)
            return (np.log(np.asarray(values, float)) - low) / (high - low)
        return (np.asarray(values, float) - self.low) / (self.high - self.low)

    def marks(self, most: int) -> dict[float, str]:
        """At most `most` round numbers on it, and how they are written."""
        most = max(most, 1)
        if self.kind == "clock":
            return {each: clock(each) for each in self._times(most)}
        found = self._ratios(most) if self.kind == "ratio" else self._rounds(most)
        return dict(zip(found, _written(found), strict=True))

    def _rounds(self, most: int) -> list[float]:
        size = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        steps = [size * factor for factor in (1, 2, 5, 10, 20)]
        return self._multiples([max(1.0, step) for step in steps] if self.kind == "count" else steps, most)

    def _times(self, most: int) -> list[float]:
        days = max(1.0, (self.high - self.low) / _DAY)
        return self._multiples([*_STEPS, *(_DAY * math.ceil(days * part / most) for part in (0.25, 1, 2))], most)

    def _multiples(self, steps: Sequence[float], most: int) -> list[float]:
        """The multiples of the first step that has few enough of them."""
        found: list[float] = []
        for step in steps:
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            found = [float(place * step) for place in range(first, min(last, first + most) + 1)]
            if len(found) <= most:
                break
        return found

    def _ratios(self, most: int) -> list[float]:
        """Powers of ten, with others between them where there is room, or every second or third of them."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found: list[float] = []
        for factors in ((1, 2, 5), (1, 3), (1,)):
            every = [float(f"{factor}e{power}") for power in powers for factor in factors]
            found = [each for each in every if self.low * (1 - 1e-9) <= each <= self.high * (1 + 1e-9)]
            if len(found) <= most:
                break
        found = found[:: -(-len(found) // most) or 1]
        return found if len(found) > 1 else self._rounds(most)


def _written(values: Sequence[float]) -> list[str]:
    """Numbers in even steps with as many decimals as those need, others as short as they can be."""
    largest = max((abs(each) for each in values), default=0.0)
    gaps = [b - a for a, b in pairwise(values)]
    step = min(gaps, default=0.0)
    if largest >= 10_000:
        return [_trimmed(short(each)) for each in values]
    if step < 1e-4 or max(gaps) > 1.5 * step:
        return [f"{each:.3g}" for each in values]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{each:.{decimals}f}" for each in values]


def _trimmed(text: str) -> str:
    """A count without the zeros after its point: `20.0k` is `20k`."""
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    return (number.rstrip("0").rstrip(".") if "." in number else number) + unit
