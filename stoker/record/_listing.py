"""All runs of a folder, looked at again and again: what has not changed costs a look, and no reading."""

import os
from pathlib import Path

from stoker.errors import MissingFile
from stoker.record._follow import Follower
from stoker.record._journal import EVENTS


class Listing:
    """The runs in a folder and the folders below it, the oldest first, kept up to date by `refresh`.

    >>> from stoker.record import Run
    >>> Run.create("runs/letters").close()
    >>> listing = Listing("runs")
    >>> [run.name for run in listing.refresh()], listing.refresh()
    (['letters'], [])

    Of a run with a large file only the beginning and the end are read.
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs") -> None:
        self.folder = Path(folder)
        self._runs: dict[Path, Follower] = {}

    @property
    def runs(self) -> list[Follower]:
        """Every run that there was at the last `refresh`, the oldest first."""
        return sorted(self._runs.values(), key=lambda run: (_started(run), str(run.path)))

    def refresh(self) -> list[Follower]:
        """Reads what is new, and returns the runs that are new or have changed; those that are gone leave `runs`."""
        there = self._find()
        self._runs = {path: run for path, run in self._runs.items() if path in there}
        changed: list[Follower] = []
        for path in there:
            try:
                run = self._runs.get(path) or Follower(path)
            except MissingFile:  # gone since it was found
                continue
            if run.refresh(seconds=0) or path not in self._runs:
                changed.append(run)
            self._runs[path] = run
        return changed

    def _find(self) -> dict[Path, None]:
        found: dict[Path, None] = {}
        for place, below, files in os.walk(self.folder):
            if EVENTS in files:
                below.clear()  # inside a run are checkpoints, no runs
                found[Path(place)] = None
        return found


def _started(run: Follower) -> float:
    started = run.facts.get("started")
    return float(started) if isinstance(started, int | float) else run.summary["started"] or 0.0
