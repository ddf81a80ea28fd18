"""The numbers of a run, put in order as they come, so that no question has to go through all events again."""

import math
from typing import Literal, NamedTuple

from stoker.record._event import Event

Direction = Literal["min", "max"]
KINDS = frozenset({"train", "valid", "log", "epoch"})  # those whose numbers are final; progress is on the way


class Best(NamedTuple):
    """The best value that a number had, and when."""

    epoch: int
    update: int
    value: float
    name: str


class Numbers:
    """Every number by name and by epoch, with the lowest and highest so far."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[int, float]]] = {}  # name: (update, value), in order
        self.rows: dict[int, dict[str, float]] = {}  # epoch: its numbers, the latest of each name
        self.columns: dict[str, None] = {}  # of the rows, in the order of their first appearance
        self._lowest: dict[str, Best] = {}
        self._highest: dict[str, Best] = {}

    def clear(self) -> None:
        """Forgets all numbers; views of the rows stay."""
        for numbers in (self.points, self.rows, self.columns, self._lowest, self._highest):
            numbers.clear()

    def add(self, event: Event) -> None:
        """Takes the numbers of an event in."""
        if event.kind not in KINDS or not event.values:
            return
        row = self.rows.setdefault(event.epoch, {}) if event.epoch > 0 else {}
        for name, value in event.values.items():
            if event.kind == "epoch" and name in row and _same(row[name], value):
                continue  # an epoch's event says again what its train and valid events have said
            row[name] = value
            if event.epoch > 0:
                self.columns[name] = None
            self.points.setdefault(name, []).append((event.update, value))
            if not math.isnan(value):
                found = Best(event.epoch, event.update, value, name)
                if name not in self._lowest or value < self._lowest[name].value:
                    self._lowest[name] = found
                if name not in self._highest or value > self._highest[name].value:
                    self._highest[name] = found

    def series(self, name: str) -> list[float]:
        """One number per epoch, NaN for an epoch without; empty where no epoch has one."""
        return [row.get(name, math.nan) for row in self.rows.values()] if name in self.columns else []

    def best(self, name: str, direction: Direction) -> Best | None:
        """The best value so far; of equal ones the first, and never NaN."""
        return (self._lowest if direction == "min" else self._highest).get(name)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
