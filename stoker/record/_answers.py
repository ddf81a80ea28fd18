"""The questions that a record answers, answered from columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.record._columns import EPOCH, Columns
from stoker.record._declared import direction_of, unit_of
from stoker.record._event import Event
from stoker.record._numbers import Best, Direction


class Answers:
    """A record as far as a summary of it needs one: of its events only those that say how the run went."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.events: Sequence[Event] = digest(columns)

    def events_of(self, kind: str) -> list[Event]:
        """The events of one kind; of those that hold numbers only a few."""
        return [event for event in self.events if event.kind == kind]

    @property
    def columns(self) -> list[str]:
        """The names of the numbers that epochs have, in the order in which they came."""
        return list(self._columns.named)

    @property
    def begin(self) -> Event | None:
        """What the run, or the latest fit of it, began with."""
        return next((event for _, event in reversed(self._columns.told) if event.kind == "begin"), None)

    def last(self, name: str) -> float | None:
        """The latest final value of a number."""
        return self._columns.last(name)

    def best(self, name: str, direction: Direction | None = None) -> Best | None:
        """The best final value of a number, the first of equal ones; `None` where nobody knows what is better."""
        direction, points = direction or self.direction(name), self._columns.finals(name)
        points = points.at(~np.isnan(points.value))
        if direction is None or not len(points):
            return None
        place = int(points.value.argmin() if direction == "min" else points.value.argmax())
        return Best(int(points.epoch[place]), int(points.update[place]), float(points.value[place]), name)

    def direction(self, name: str) -> Direction | None:
        """What is better of a number."""
        losses = self._columns.losses[-1][1] if self._columns.losses else []
        return direction_of(name, self._about(), losses)

    def unit(self, name: str) -> str:
        """The unit of a number."""
        return unit_of(name, self._about())

    def _about(self) -> Mapping[str, Any]:
        return self.begin.extra if self.begin is not None else {}


def digest(columns: Columns) -> list[Event]:
    """The events that tell how a run went and how long its parts took, and none of those between."""
    if not len(columns):
        return []
    told = dict(columns.told)
    rows = {0, len(columns) - 1, int(np.argmax(columns.updates))}
    rows |= {row - 1 for row in told if row > 0} | set(told)
    of_epochs = np.flatnonzero(np.asarray(columns.kinds) == EPOCH)
    if len(of_epochs):
        rows.add(int(of_epochs[np.argmax(np.asarray(columns.epochs)[of_epochs])]))
    return [told.get(row) or _bare(columns, row) for row in sorted(rows)]


def _bare(columns: Columns, row: int) -> Event:
    """An event of which the columns have kept nothing but its numbers: where and when."""
    kind = "epoch" if columns.kinds[row] == EPOCH else "numbers"
    return Event(kind, columns.times[row], columns.epochs[row], 0, columns.updates[row])
