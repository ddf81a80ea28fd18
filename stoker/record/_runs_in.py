"""The runs of a folder."""

import os
from pathlib import Path

from stoker.errors import BadFile
from stoker.record._event import Event
from stoker.record._journal import EVENTS
from stoker.record._record import Record
from stoker.record._run import Run


def runs_in(folder: str | os.PathLike[str] = "runs") -> list[Run]:
    """Every run in a folder and the folders below it, the oldest first; one that can't be read has died of that."""
    found: list[Run] = []
    for place, below, files in os.walk(folder):
        if EVENTS in files:
            below.clear()  # inside a run are checkpoints, no runs
            try:
                found.append(Run.open(place))
            except BadFile as error:
                found.append(_unreadable(Path(place), error))
    return sorted(found, key=lambda run: (_started(run), str(run.path)))


def _unreadable(path: Path, error: BadFile) -> Run:
    record = Record()
    record.append(Event("error", (path / EVENTS).stat().st_mtime, text=str(error)))
    return Run(path, record, config=None, facts={})


def _started(run: Run) -> float:
    started = run.facts.get("started")
    return started if isinstance(started, float) else (run.path / EVENTS).stat().st_mtime
