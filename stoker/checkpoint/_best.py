"""The number by which one checkpoint is better than another."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stoker.checkpoint._place import Saved
from stoker.errors import InvalidArgument, NoSuchMetric, did_you_mean
from stoker.record import Direction

Directions: TypeAlias = Callable[[str], Direction | None]  # what is better of a number, by its name, where it is known


@dataclass(frozen=True)
class Measure:
    """A number by its name, and what is better of it; a function that says so is asked once the number is there."""

    name: str
    direction: Direction | Directions

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgument(f'keep_best={self.name!r}: expected the name of a number, such as "valid/loss"')
        if self.direction not in ("min", "max") and not callable(self.direction):
            raise InvalidArgument(f'direction={self.direction!r}: expected "min" or "max"')

    def best(self, saved: Sequence[Saved]) -> Saved | None:
        """The checkpoint with the best value: of equal ones the first, and never NaN."""
        best = None
        for each in saved:
            if self.is_better(each.values, best):
                best = each
        return best

    def is_better(self, values: Mapping[str, float], best: Saved | None) -> bool:
        """Whether values have a better number than a checkpoint; any number is better than none."""
        value = values.get(self.name, math.nan)
        if math.isnan(value):
            return False
        low = self._low()
        if best is None:
            return True
        return value < best.values[self.name] if low else value > best.values[self.name]

    def check(self, values: Mapping[str, float], saved: Sequence[Saved]) -> None:
        """Refuses a number that neither these values nor those of any checkpoint have."""
        if self.name not in values and not any(self.name in each.values for each in saved):
            raise NoSuchMetric(
                f"keep_best={self.name!r}, and there is no such number{did_you_mean(self.name, values)} "
                f"(there are: {', '.join(values)})"
            )

    def _low(self) -> bool:
        known = self.direction(self.name) if callable(self.direction) else self.direction
        if known is None:
            raise InvalidArgument(
                f"is a low or a high {self.name!r} better? Say Checkpoint(keep_best={self.name!r}, "
                'direction="min") or direction="max"'
            )
        return known == "min"
