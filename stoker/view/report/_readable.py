"""What a report is made of: a run's directory that is followed, or a record that is in memory only."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stoker.errors import WrongType
from stoker.record import Best, Direction, Event, Follower, Points, Record, Run

_FINAL = ("train", "valid", "log", "epoch")  # kinds of events whose numbers are an epoch's own
_SAID = ("note", "warning", "stop", "error", "resume", "checkpoint")


class Remembered:
    """A record in memory, asked as a run's directory is: what a `Follower` answers, out of what has happened so far.

    >>> record = Record()
    >>> record.append(Event("valid", 1.0, epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> Remembered(record, name="digits").points("valid/loss").value.tolist()
    [0.5]
    """

    def __init__(self, record: Record, *, name: str = "a fit", facts: Mapping[str, Any] | None = None) -> None:
        self._record = record
        self.name, self.facts, self.config = name, facts or {}, None
        self.problem, self.log = "", list[str]()
        self.summary = record.summary()
        self.state, self.reason = self.summary["state"], self.summary["reason"]
        begins = record.events_of("begin")
        self.begin = begins[-1] if begins else None
        self.messages = [event for event in record.events if event.kind in _SAID]
        self._rows = _rows(record.events)
        self.names = list(self._rows)

    def points(self, name: str, *, source: Literal["epochs", "all", "running"] = "all") -> Points:
        """A number over the run."""
        rows = self._rows.get(name, [])
        wanted = [row[1:] for row in rows if source == "all" or row[0] == (source == "epochs")]
        return Points(*np.array(wanted, dtype=np.float64).reshape(-1, 4).T)

    def direction(self, name: str) -> Direction | None:
        """What is better of a number."""
        return self._record.direction(name)

    def unit(self, name: str) -> str:
        """The unit of a number."""
        return self._record.unit(name)

    def best(self, name: str) -> Best | None:
        """The best of a number, where it is known what is better."""
        return None if self.direction(name) is None else self._record.best(name)


Readable = Follower | Remembered


def as_readable(run: Readable | Record | Run | str | os.PathLike[str]) -> Readable:
    """A run however it is given; a directory is read to its end."""
    if isinstance(run, Follower | Remembered):
        return run
    if isinstance(run, Record):
        return Remembered(run)
    if not isinstance(run, Run | str | os.PathLike):
        raise WrongType(
            f"a report is made of a run's directory, a Run, a Follower or a Record; got {type(run).__name__}"
        )
    follower = Follower(run.path if isinstance(run, Run) else Path(run))
    follower.refresh()
    return follower


def _rows(events: Sequence[Event]) -> dict[str, list[tuple[bool, int, int, float, float]]]:
    """By name: whether a number is final, then update, epoch, time and value."""
    found: dict[str, list[tuple[bool, int, int, float, float]]] = {}
    for event in events:
        if event.kind == "progress" or event.kind in _FINAL:
            for name, value in event.values.items():
                row = (event.kind != "progress", event.update, event.epoch, event.time, value)
                found.setdefault(name, []).append(row)
    return found
