"""The runs that a report can be about: a run directory, or a record in memory that is read in the same way."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.errors import WrongType
from stoker.record import Best, Follower, Matrix, Record, Run


class RecordReader:
    """A record in memory with the attributes of a `Follower` that reports use."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.name, self.problem, self.config = "a fit", "", None
        self.facts: Mapping[str, Any] = {}
        self.log: list[str] = []
        self.summary = record.summary()
        self.state, self.reason = self.summary["state"], self.summary["reason"]
        self.begin, self.messages, self.media = record.begin, record.messages, record.media
        self.path = record.path.parent if record.path is not None else None
        self.matrices, self.matrix = record.matrices, record.matrix
        self.names, self.points, self.direction, self.unit = record.names, record.points, record.direction, record.unit

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


def recorded_matrices(run: RunReader) -> dict[str, Matrix]:
    """The confusion matrices that a run recorded, in its best epoch or else its last; rows are the true classes."""
    found = {name: run.matrix(name) for name in run.matrices}
    return {name: matrix for name, matrix in found.items() if matrix is not None}
