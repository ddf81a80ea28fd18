"""The runs of a folder."""

import os

from stoker.errors import MissingFile
from stoker.record._follow import Follower
from stoker.record._journal import EVENTS


def runs_in(folder: str | os.PathLike[str] = "runs", *, read: bool = True) -> list[Follower]:
    """Every run in a folder and the folders below it, read around what is damaged, the oldest first.

    >>> from stoker.record import Run
    >>> Run.create("runs/letters").close()
    >>> [(run.name, run.state) for run in runs_in("runs")]
    [('letters', 'died')]

    Without `read`, of a large record only its beginning and its end are read, which is enough to know it by.
    """
    found: list[Follower] = []
    for place, below, files in os.walk(folder):
        if EVENTS in files:
            below.clear()  # inside a run are checkpoints, no runs
            try:
                found.append(Follower(place))
            except MissingFile:  # gone since it was found
                continue
            found[-1].refresh(seconds=None if read else 0)
    return sorted(found, key=lambda run: (_started(run), str(run.path)))


def _started(run: Follower) -> float:
    started = run.facts.get("started")
    return float(started) if isinstance(started, int | float) else run.summary["started"] or 0.0
