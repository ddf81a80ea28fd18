"""The runs that a report can be about: a run directory, or a record in memory that is read in the same way."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.errors import WrongType
from stoker.record import Best, Direction, Event, Follower, Points, Record, Run, Source

_MESSAGES = ("note", "warning", "stop", "error", "resume", "checkpoint")


class RecordReader:
    """A record in memory with the attributes of a `Follower` that reports use."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.name, self.problem, self.config = "a fit", "", None
        self.facts: Mapping[str, Any] = {}
        self.log: list[str] = []
        self.summary = record.summary()
        self.state, self.reason = self.summary["state"], self.summary["reason"]
        begins = record.events_of("begin")
        self.begin: Event | None = begins[-1] if begins else None
        self.messages = [event for event in record.events if event.kind in _MESSAGES]
        self.names = record.names

    def points(self, name: str, *, source: Source = "all") -> Points:
        """The values of a name over the run."""
        return self._record.points(name, source=source)

    def direction(self, name: str) -> Direction | None:
        """Whether "min" or "max" is better, if known."""
        return self._record.direction(name)

    def unit(self, name: str) -> str:
        """The unit of a name's values."""
        return self._record.unit(name)

    def best(self, name: str) -> Best | None:
        """The best value of a name; `None` if its direction is unknown."""
        return None if self.direction(name) is None else self._record.best(name)


RunReader = Follower | RecordReader
RunLike = RunReader | Record | Run | str | os.PathLike[str]


def open_run(run: RunLike) -> RunReader:
    """A reader for a run given in any form; a directory is read to its end."""
    if isinstance(run, Follower | RecordReader):
        return run
    if isinstance(run, Record):
        return RecordReader(run)
    if not isinstance(run, Run | str | os.PathLike):
        raise WrongType(
            f"a report needs a run directory, a Run, a Follower or a Record; got an object of type {type(run).__name__}"
        )
    follower = Follower(run.path if isinstance(run, Run) else Path(run))
    follower.refresh()
    return follower
